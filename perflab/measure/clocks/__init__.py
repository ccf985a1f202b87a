"""Clocks and stopwatches: the time of a sample on the host, on a GPU, with cold caches, in a CUDA graph."""
