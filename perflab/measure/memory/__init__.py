"""Memory of a call: its peak, recordings of its allocations, and tensors that stay alive."""
