"""All private and undocumented names of PyTorch and Triton that perflab uses."""
