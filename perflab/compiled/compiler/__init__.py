"""Triton kernels compiled ahead of time, on a machine without a GPU: what they take, and what they are made of.

Knows Triton's compiler and the limits of NVIDIA's architectures; what a change means, ``gate`` knows. Importing this
loads neither torch nor triton::

    from perflab.compiled.compiler import KernelExample
"""

from perflab.compiled.compiler.example import KernelExample

__all__ = ["KernelExample"]
