"""Products with 16- and 32-bit weights whose bits don't depend on the batch."""
