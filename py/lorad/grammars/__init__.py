"""What an answer has to look like, as grammars for llguidance: made and checked here, followed in the worker."""
