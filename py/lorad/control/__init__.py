"""Adapters while the server runs: loads, unloads, pins, aliases, and the endpoints that ask for them."""
