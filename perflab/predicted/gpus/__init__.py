"""Data sheets of GPUs, and the roofline times of operators on them."""
