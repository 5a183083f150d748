"""`lorad bench`: what adapters cost on this machine, with the real engine, in process and over HTTP."""
