"""Several adapters into one: an experiment, as adapters that were trained apart know nothing of each other."""
