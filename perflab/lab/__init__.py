"""The lab: ordinary PyTorch and Triton code that perflab is proven on. It knows nothing of the harness."""
