"""Compiles Triton kernels ahead of time, without a GPU, and reads off their resources and instructions.

This package knows Triton's compiler and the limits of NVIDIA's and AMD's GPUs; ``compiled/judge.py`` judges changes.
Importing the package loads neither torch nor triton::

    from perflab.compiled.compiler import KernelExample
"""

from perflab.compiled.compiler.example import KernelExample

__all__ = ["KernelExample"]
