"""lorad: many LoRA adapters on one base model."""
