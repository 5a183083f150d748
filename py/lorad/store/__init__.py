"""What survives a restart, in SQLite."""
