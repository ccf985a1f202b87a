"""Reads NVIDIA's machine code: the loops of a kernel, the instructions of an iteration, and a bound on its speed."""
