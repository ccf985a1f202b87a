"""Sweeps: the selected cases as a few jobs of a cluster, whose reports arrive in one session (``--perf-slurm``)."""
