"""Dry runs: cases run on CUDA without a GPU, over ``nocuda``; memory, launches and host waits are real."""
