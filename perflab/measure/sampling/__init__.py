"""Sampling: how long to warm up, when to stop, and statistics of samples."""
