"""The HTTP server: OpenAI's routes over an engine handle. Knows nothing of torch."""
