"""Base models: one file per architecture, and the weights files they are read from."""
