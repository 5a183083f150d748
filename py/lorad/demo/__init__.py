"""The embedded base, its tenants, and the demo that serves them."""
