"""The engine: core and worker stepped together, and the process around them."""
