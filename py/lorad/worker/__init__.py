"""The worker: what computes a plan. It owns the arena, the device tables and the activations, and decides nothing."""
