"""The machine that measures: devices, caches, the allocator, the GPU's state, and other processes."""
