"""Peak memory from a trace: live tensors, the caching allocator, other sizes."""
