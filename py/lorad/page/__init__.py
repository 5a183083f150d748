"""The page at /ui: its files, and the one endpoint that its figures come from."""
