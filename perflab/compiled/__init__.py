"""The compiled tier: Triton kernels compiled ahead of time for GPUs that are not here."""
