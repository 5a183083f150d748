"""Rotary embedding, and writing K and V into pages."""
