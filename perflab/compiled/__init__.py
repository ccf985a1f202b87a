"""The compiled tier: Triton kernels compiled ahead of time for GPUs that need not be present."""
