"""Makes a CPU build of PyTorch behave as on CUDA: fake tensors, autocast, attention backends, foreach kernels."""
