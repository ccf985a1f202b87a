"""Kernels that nobody vouches for: each runs in a process that knows no answer, and is judged from outside of it."""
