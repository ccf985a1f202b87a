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
    r"cublas(?!Set|Get|Create|Destroy)[SDCZIH].*|cublas(Gemm|Dot).*|cublasLtMatmul|cudnnBackendExecute|cufftXtExec"
    r"|cudnn(?!Set|Get|Create|Destroy|Find).*(Forward|Backward)(Ex|Data|Weights|Filter|_v8|Inference|Training)*|cudnnCTCLoss(_v8)?"
    r"|cusparse(?!Set|Get|Create|Destroy|SpMMCreate)(?!.*(Set|Get)[A-Z]|.*_(create|destroy)Descr)(Sp|SDDMM|Dense|Sparse|X?[SDCZ]).*"
    r"|cusparseLtMatmul|cusparseLtSpMMACompress2|cusolver(Dn|Rf|Sp)(?!.*(Set|Get|Create|Destroy)[A-Z])[XSDCZ].*"
)
_STREAMS = re.compile(r"(cublas|cudnn|cusparse|cusolverDn|cufft)SetStream(_v2)?")
_MAKES = re.compile(r"(cusolverDn|cusparse)Create(?!Identity).*|cusparseSp\w+_createDescr")
_FREES = re.compile(r"(cusolverDn|cusparse)Destroy.*|cusparseSp\w+_destroyDescr")
_TEXTS = re.compile(r"\w+Get(Last)?Error(String|Name)")
_NUMBERS = {
    # Sizes of workspaces: nobody here knows them, so there are none.
    r"cusolverDn[SDCZ]potrf_bufferSize|cusolverDn[SDCZ]getrf_bufferSize|cusolverDn[SDCZ]geqrf_bufferSize": "int 5",
    r"cusolverDn[SDCZ]gesvd_bufferSize": "int 3",
    r"cusolverDn[SDCZ]gesvdj_bufferSize": "int 12",
    r"cusolverDn[SDCZ]gesvdjBatched_bufferSize": "int 11",
    r"cusolverDn[SDCZ]gesvdaStridedBatched_bufferSize": "int 16",
    r"cusolverDn[SDCZ](sy|he)ev(d|jBatched)_bufferSize": "int 7",
    r"cusolverDn[SDCZ](or|un)gqr_bufferSize": "int 7",
    r"cusolverDn[SDCZ](or|un)mqr_bufferSize": "int 11",
    r"cusolverDn[SDCZ]sytrf_bufferSize": "int 4",
    r"cusolverDnXpotrf_bufferSize": "size_t 8 9",
    r"cusolverDnXgeqrf_bufferSize": "size_t 10 11",
    r"cusolverDnXsyev(d|Batched)_bufferSize": "size_t 11 12",
    r"cusolverDnXgeev_bufferSize": "size_t 17 18",
    r"cusolverDnXsytrs_bufferSize": "size_t 11 12",
    r"cusparseSpMV_bufferSize|cusparseSpSV_bufferSize": "size_t 9",
    r"cusparseSpMM_bufferSize|cusparseSDDMM_bufferSize|cusparseSpSM_bufferSize": "size_t 10",
    r"cusparseSpGEMM_(workEstimation|compute)": "size_t 11",
    r"cusparse[SDCZ]csrgeam2_bufferSizeExt": "size_t 19",
    r"cusparseX(coo|csr)sort_bufferSizeExt": "size_t 6",
    r"cusparse[SDCZ]bsrsv2_bufferSize": "int 11",
    r"cusparse[SDCZ]bsrsm2_bufferSize": "int 13",
    r"cusparseLtSpMMACompressedSize2": "size_t 2 3",
    r"cusparseLtMatmulGetWorkspace": "size_t 2",
    r"cudnnDropoutGetStatesSize": "size_t 1",
    r"cudnnGetRNNTempSpaceSizes": "size_t 4 5",
    r"cudnnGetCTCLossWorkspaceSize": "size_t 8",
    r"cudnnGetCTCLossWorkspaceSize_v8": "size_t 5",
    r"cudnnGetConvolution\w+WorkspaceSize": "size_t 6",
    # Numbers of results, and what the host reads of errors.
    r"cusparseSpMatGetSize": "int64_t 1 2 3",
    r"cusparseXcsrgeam2Nnz": "int 13",
    r"cudnnGetConvolution\w+Algorithm_v7": "int 6",
    r"cudnnFindConvolution\w+AlgorithmEx": "int 9",
    r"cublas[SDCZ]geqrfBatched": "int 6",
    r"cublas[SDCZ](gels|getrs)Batched": "int 9",
}
"""Functions that answer by pointers to the host's memory: which of their arguments, counted from 0. They answer 0."""
_SIZES = re.compile(r"(buffer|workspace|space)_?size", re.IGNORECASE)
"""Functions that say how large a workspace is to be: those that are not among the above fail."""
_BY_NAME = (
    *("cuCtxSetLimit", "cuCtxResetPersistingL2Cache", "cuFuncSetCacheConfig", "cuStreamWriteValue32"),
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
    """C of functions that count their calls, and answer "success", stand for a launch, make a handle, or fail."""
    lines = ['#include "counter.h"', "#include <stddef.h>", "#include <stdint.h>"]
    for name in sorted(names):
        returned, arguments, body = "int", "void", "return nocuda_unknown(&c);"
        kind, *positions = next((said for one, said in _NUMBERS.items() if re.fullmatch(one, name)), "").split() or [""]
        if positions:  # all arguments are numbers or pointers, which a call passes alike
            arguments = ", ".join(f"void *a{position}" for position in range(int(positions[-1]) + 1))
            answers = "".join(f"if (a{position}) *({kind} *)a{position} = 0; " for position in positions)
            launches = _LAUNCHES.fullmatch(name) and not _SIZES.search(name)
            body = answers + ("return nocuda_library_launch(&c, a0);" if launches else body)
        elif _TEXTS.fullmatch(name):
            returned, body = "const char *", 'nocuda_unknown(&c); return "nocuda: an error of a library";'
        elif _SIZES.search(name):
            body = "nocuda_unknown(&c); return 15; /* not supported */"
        elif _STREAMS.fullmatch(name):
            arguments, body = "void *handle, void *stream", "return nocuda_set_stream(&c, handle, stream);"
        elif _MAKES.fullmatch(name):
            arguments, body = "void **made", "return nocuda_make(&c, made);"
        elif _FREES.fullmatch(name):
            arguments, body = "void *made", "return nocuda_free(&c, made);"
        elif _LAUNCHES.fullmatch(name):  # the handle is the first argument of all of them
            arguments, body = "void *handle", "return nocuda_library_launch(&c, handle);"
        lines.append(f'{returned} {name}({arguments}) {{ static Counter c = {{.name = "{name}"}}; {body} }}')
    return "\n".join(lines) + "\n"


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
