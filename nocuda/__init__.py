"""CUDA's host side on a machine without a GPU: PyTorch's CUDA build, unchanged, over a driver that computes nothing.

One shared library stands in for NVIDIA's. Device memory is reserved address space; kernels are counted by name and not
run; every number that a kernel would have computed reads as zero. All that happens on the host is real: PyTorch's
caching allocator, autocast, its choice of kernels, streams, events, CUDA graphs, Triton's compiler and launcher,
``torch.profiler``, out of memory.

It is no GPU and no emulator: it knows no results, no times of kernels, no registers and no occupancy. It is active only
in processes that are started with :func:`environment`, and refuses where a real NVIDIA driver is.

``python -m nocuda`` says what is here, ``python -m nocuda build`` builds it, ``python -m nocuda run -- COMMAND`` runs a
command with it.
"""

from nocuda.build import Built, build
from nocuda.errors import NocudaError
from nocuda.launch import Gpu, environment, is_active
from nocuda.library import Library, Seen, library

__all__ = ["Built", "Gpu", "Library", "NocudaError", "Seen", "build", "environment", "is_active", "library"]
