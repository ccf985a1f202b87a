"""Names of GPU architectures for which kernels are compiled."""

from __future__ import annotations

Arch = int | str
"""A GPU's architecture: NVIDIA's compute capability without the dot (90 is sm_90), or AMD's name (``gfx942``)."""


def name_of_arch(arch: Arch) -> str:
    """Return an architecture's name as compilers write it: ``sm_90``, ``gfx942``."""
    return f"sm_{arch}" if isinstance(arch, int) else arch
