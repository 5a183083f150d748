"""Batched LoRA over mixed adapters."""
