"""Adapter files: read, checked against the base, laid out in pages, and named by what they hold."""
