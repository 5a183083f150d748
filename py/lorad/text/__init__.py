"""Text in and out: tokenizer, chat template, incremental decoding, stop strings. Knows nothing of engine and server."""
