"""Paged causal attention."""
