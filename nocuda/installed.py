"""What is installed here: a driver, PyTorch's CUDA build, headers, a compiler. Loads neither torch nor triton."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from nocuda.errors import NocudaError

TESTED = {"2.13": ("13.0",)}
"""Versions of PyTorch, and of the CUDA that each was built with, that the tests have run with."""

_DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvhost-ctrl", "/dev/dxg")
_DRIVER_LIBRARIES = ("cuda", "nvidia-ml")
_find_library = ctypes.util.find_library
_find_spec = importlib.util.find_spec
_INSTALL = (
    "install it into a virtual environment of its own: pip install --index-url "
    "https://download.pytorch.org/whl/cu130 torch (on a machine without a GPU its NVIDIA packages can be left out)"
)


@dataclass(frozen=True)
class Torch:
    """A CUDA build of PyTorch, as its files say."""

    folder: Path
    version: str
    """``2.13.0+cu130``."""
    cuda: str
    """``13.0``."""

    @property
    def is_tested(self) -> bool:
        """Whether the tests have run with this version."""
        return self.cuda in TESTED.get(".".join(self.version.split(".")[:2]), ())


def refuse_a_real_driver() -> None:
    """A GPU that is here is to be used.

    Raises:
        NocudaError: a GPU's device file or a library of NVIDIA's driver is there; or this is no Linux on x86-64.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise NocudaError(
            f"CUDA without a GPU needs Linux on x86-64; this is {sys.platform} on {platform.machine()}",
            "run it in a container or on a CI runner; fake tensors (--perf-predict) work everywhere",
        )
    found = next((path for path in _DRIVER_FILES if os.path.exists(path)), None)
    for name in () if found else _DRIVER_LIBRARIES:
        found = _find_library(name) or found
    if found:
        raise NocudaError(
            f"a real NVIDIA driver is here ({found}), and nocuda does not replace it",
            "run without it: `pytest -m perf` measures on the GPU; or go to a machine without one",
        )


def torch_here() -> Torch:
    """The installed PyTorch.

    Raises:
        NocudaError: there is none, or it is a build without CUDA.
    """
    spec = _find_spec("torch")
    if spec is None or spec.origin is None:
        raise NocudaError("PyTorch is not installed", _INSTALL)
    folder = Path(spec.origin).parent
    said = dict(re.findall(r"^(__version__|cuda)\b[^=]*= '([^']*)'", (folder / "version.py").read_text(), re.MULTILINE))
    version, cuda = said.get("__version__", "?"), said.get("cuda")
    if cuda is None:
        raise NocudaError(f"PyTorch {version} is a build without CUDA; nocuda needs a CUDA build", _INSTALL)
    if int(cuda.split(".")[0]) < 13:
        raise NocudaError(
            f"PyTorch {version} is built with CUDA {cuda}; nocuda needs CUDA 13 or newer",
            f"use a newer build; these are tested: {', '.join(f'torch {one}' for one in TESTED)}",
        )
    return Torch(folder, version, cuda)


def headers() -> Path:
    """The folder with ``cuda.h``, ``cuda_runtime_api.h`` and ``cupti.h``, which triton brings along.

    Raises:
        NocudaError: triton is not installed, or has none.
    """
    spec = _find_spec("triton")
    folder = Path(spec.origin).parent / "backends" / "nvidia" / "include" if spec and spec.origin else None
    wanted = ("cuda.h", "cuda_runtime_api.h", "cupti.h")
    if folder is None or not all((folder / one).is_file() for one in wanted):
        raise NocudaError("triton, which brings CUDA's headers, is not installed", "pip install triton")
    return folder


def tool(*names: str) -> str:
    """The first of these programs that is installed.

    Raises:
        NocudaError: none is.
    """
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        raise NocudaError(f"{names[0]} is not installed", "install a C compiler with binutils: apt-get install gcc")
    return found
