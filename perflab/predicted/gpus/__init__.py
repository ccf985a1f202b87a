"""Data sheets of GPUs, and the time that operators take at least on them."""
