"""Which functions of NVIDIA's libraries PyTorch calls, and C for those that need no body of their own."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from nocuda.installed import tool

_NVIDIAS = re.compile(
    r"(cu[A-Z]|cublas|cudnn|cufft|cupti|curand|cusolver|cusparse|cuda[A-Z]|__cuda|nccl|pnccl|nvml|nvshmem|nvrtc|cuFile)"
)
_LIBRARIES = re.compile(
    r"lib(cu(blas|blasLt|da|dart|dnn|fft|file|pti|rand|solver|sparse|sparseLt)|nccl|nvrtc|nvshmem_host)\.so"
)
_LAUNCHES = re.compile(
    r"cublas(?!Set|Create|Destroy)[SDCZIH].*|cublas(Gemm|Dot).*|cublasLtMatmul|cudnnBackendExecute|cufftXtExec"
    r"|cudnn.*(Forward|Backward)(Ex|Data|Weights|_v8|Inference|Training)*"
    r"|cusparse(?!Set|Create|Destroy|SpMMCreate)(Sp|Dense|Sparse|X?[SDCZ]).*|cusolver(Dn|Rf|Sp)(?!Set|Create|Destroy)[XSDCZ].*|nccl(All|Broad|Bcast|Reduce|Send|Recv).*"
)
_STREAMS = re.compile(r"(cublas|cudnn|cusparse|cusolverDn|cufft)SetStream(_v2)?")
_SIZES = re.compile(r"buffersize|workspacesize|spacesize", re.IGNORECASE)
"""Functions that say how large a workspace is to be: nobody here knows, so they fail."""
_BY_NAME = (
    *("cuCtxSetLimit", "cuFuncSetCacheConfig", "cuStreamWriteValue32"),
    *("cuTensorMapEncodeIm2col", "cuTensorMapEncodeTiled"),
    *("cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"),
    *("cuMemRetainAllocationHandle", "cuMemGetAllocationPropertiesFromHandle"),
    *("cuMulticastAddDevice", "cuMulticastBindMem", "cuMulticastCreate", "cuMulticastUnbind"),
    *("nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetGpuFabricInfoV"),
)
"""What PyTorch and triton look up when they run, and so is not among the symbols that they are linked with."""


def wanted_by(libraries: Iterable[Path]) -> set[str]:
    """Names of NVIDIA's functions that these shared libraries call."""
    found = set(_BY_NAME)
    for library in libraries:
        listed = _run(tool("nm"), "-D", "--undefined-only", str(library))
        names = (line.split()[-1].partition("@")[0] for line in listed.splitlines())
        found |= {name for name in names if _NVIDIAS.match(name)}
    return found


def sonames(libraries: Iterable[Path]) -> set[str]:
    """Names of NVIDIA's libraries that these are linked with: ``libcudart.so.13``; the driver's two always."""
    found = {"libcuda.so.1", "libnvidia-ml.so.1"}
    for library in libraries:
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", _run(tool("readelf"), "-d", str(library)))
        found |= {name for name in needed if _LIBRARIES.match(name)}
    return found


def defined_in(objects: Iterable[Path]) -> set[str]:
    """Functions that object files define."""
    listed = _run(tool("nm"), "--defined-only", *map(str, objects))
    return {line.split()[-1] for line in listed.splitlines() if " T " in line}


def stubs(names: Iterable[str]) -> str:
    """C of functions that count their calls, and answer "success", stand for a launch, or fail."""
    lines = ['#include "counter.h"']
    for name in sorted(names):
        arguments, body = "void", "return nocuda_unknown(&c);"
        if _SIZES.search(name):
            body = "nocuda_unknown(&c); return 15; /* not supported */"
        elif _STREAMS.fullmatch(name):
            arguments, body = "void *handle, void *stream", "return nocuda_set_stream(&c, handle, stream);"
        elif _LAUNCHES.fullmatch(name):  # the handle is the first argument of all of them
            arguments, body = "void *handle", "return nocuda_library_launch(&c, handle);"
        lines.append(f'int {name}({arguments}) {{ static Counter c = {{.name = "{name}"}}; {body} }}')
    return "\n".join(lines) + "\n"


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
