"""From a trace to peak memory: live tensors, the caching allocator, other sizes."""
