"""One side of a comparison: its tree, its processes, and the messages to them."""
