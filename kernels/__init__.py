"""Operators as plain torch definitions, and the Triton kernels beside them."""
