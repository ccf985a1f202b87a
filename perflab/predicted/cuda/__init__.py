"""A CPU build of PyTorch that behaves as on CUDA: fake tensors, autocast, attention backends, foreach kernels."""
