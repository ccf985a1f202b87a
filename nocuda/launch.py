"""Starts processes in which the library stands in for NVIDIA's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from nocuda.build import Built, build
from nocuda.installed import refuse_a_real_driver

ACTIVE = "NOCUDA_LIBRARY"
"""Environment variable: the library's path, in a process that has it."""


@dataclass(frozen=True)
class Gpu:
    """What the devices say that they are. The default is an H100 SXM."""

    name: str = "NVIDIA H100 80GB HBM3"
    """As ``torch.cuda.get_device_name()`` says it."""
    total_bytes: int = 85_017_493_504
    """All memory, as CUDA reports it."""
    context_bytes: int = 768 << 20
    """Of that, what a process takes outside of PyTorch's allocator."""
    capability: int = 90
    """Compute capability without its dot."""
    multiprocessors: int = 132
    l2_bytes: int = 50 << 20
    devices: int = 1
    """How many of them."""


def is_active() -> bool:
    """Whether this process was started with the library."""
    return ACTIVE in os.environ


def environment(
    gpu: Gpu | None = None, *, built: Built | None = None, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of a process in which CUDA is there and computes nothing.

    Args:
        gpu: what its devices are.
        built: the library; None builds it, or takes it from the cache.
        base: what to add to; None: this process's environment.

    Raises:
        NocudaError: a real driver is here, or the library cannot be built.
    """
    refuse_a_real_driver()
    built = built or build()
    said = ";".join(f"{name}={value}" for name, value in asdict(gpu or Gpu()).items())
    found = dict(os.environ if base is None else base)
    # By name they are the libraries that PyTorch is linked with: the loader takes what is loaded already, wherever
    # PyTorch would look first, and whether NVIDIA's own packages are installed there or not.
    preloaded = [*map(str, built.stand_ins), *filter(None, found.get("LD_PRELOAD", "").split(":"))]
    return found | {
        "LD_PRELOAD": ":".join(dict.fromkeys(preloaded)),  # once, where a process that has it starts another
        "NOCUDA_GPU": said,
        "NVTX_INJECTION64_PATH": str(built.library),
        "TRITON_LIBCUDA_PATH": str(built.folder),
        "TRITON_INTERPRET": "0",
        ACTIVE: str(built.library),
    }
