"""`lorad bench`: what adapters cost on this machine, in process, with the real engine."""
