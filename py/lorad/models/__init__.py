"""Base models: their configs, the decoder that computes them all, and the weights files they are read from."""
