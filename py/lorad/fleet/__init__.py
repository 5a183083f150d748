"""Several replicas: what they tell of themselves, and `lorad route`, one front for all of them."""
