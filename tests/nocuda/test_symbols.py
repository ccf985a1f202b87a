"""The generator of functions without a body of their own, without a CUDA build: its C is compiled and called."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest

from nocuda import symbols
from nocuda.errors import NocudaError
from nocuda.installed import tool

COUNTED = """
#include "counter.h"
static const char *last = "";
static int said(const char *what) { last = what; return 0; }
const char *last_said(void) { return last; }
void nocuda_count(Counter *c) {}
int nocuda_unknown(Counter *c) { return said("unknown"); }
int nocuda_library_launch(Counter *c, void *handle) { return said("launch"); }
int nocuda_set_stream(Counter *c, void *handle, void *stream) { return said("stream"); }
int nocuda_make(Counter *c, void **made) { *made = (void *)last_said; return said("make"); }
int nocuda_free(Counter *c, void *made) { return said("free"); }
"""


def compiled(folder: Path, *names: str) -> ctypes.CDLL:
    try:
        compiler = tool("cc", "gcc", "clang")
    except NocudaError as error:
        pytest.skip(error.problem)
    (folder / "stubs.c").write_text(symbols.stubs(names))
    (folder / "counted.c").write_text(COUNTED)
    include = Path(symbols.__file__).parent / "src"
    sources = [str(folder / "stubs.c"), str(folder / "counted.c")]
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-w",
        "-Wl,-Bsymbolic",
        f"-I{include}",
        "-o",
        str(folder / "stubs.so"),
        *sources,
    ]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(folder / "stubs.so"))
    library.last_said.restype = ctypes.c_char_p
    return library


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cublasSgemm_v2", "launch"),
        ("cublasGemmStridedBatchedEx", "launch"),
        ("cublasSdot_v2", "launch"),
        ("cublasSetSmCountTarget", "unknown"),
        ("cublasSetStream_v2", "stream"),
        ("cudnnBackendExecute", "launch"),
        ("cudnnRNNForward", "launch"),
        ("cudnnRNNBackwardWeights_v8", "launch"),
        ("cudnnSetConvolutionMathType", "unknown"),
        ("cufftXtExec", "launch"),
        ("cusparseSpMM", "launch"),
        ("cusparseSDDMM", "launch"),
        ("cusparseCsrSetPointers", "unknown"),
        ("cusparseDnMatSetStridedBatch", "unknown"),
        ("cusparseSpSM_createDescr", "make"),
        ("cusparseCreateCsr", "make"),
        ("cusparseDestroySpMat", "free"),
        ("cusolverDnCreate", "make"),
        ("cusolverDnSgetrf", "launch"),
        ("cusolverDnXgesvdjSetTolerance", "unknown"),
        ("ncclCommInitRank", "unknown"),
    ],
)
def test_a_function_stands_for_a_launch_a_handle_or_nothing(name: str, kind: str) -> None:
    line = symbols.stubs([name]).splitlines()[-1]
    said = {"launch": "library_launch", "stream": "set_stream"}.get(kind, kind)
    assert re.findall(r"nocuda_(\w+)\(&c", line) == [said]


@pytest.mark.parametrize(
    ("name", "written", "arguments"),
    [
        ("cusolverDnSgetrf_bufferSize", (5,), 6),
        ("cusolverDnXgeqrf_bufferSize", (10, 11), 12),
        ("cusolverDnXgeev_bufferSize", (17, 18), 19),
        ("cusparseSpMM_bufferSize", (10,), 11),
        ("cudnnGetRNNTempSpaceSizes", (4, 5), 6),
        ("cublasSgeqrfBatched", (6,), 8),
    ],
)
def test_the_answers_of_a_function_are_zero_and_nothing_else_is_touched(
    name: str, written: tuple[int, ...], arguments: int, tmp_path: Path
) -> None:
    """Registers hold the first six arguments, the stack the others."""
    library = compiled(tmp_path, name)
    numbers = [ctypes.c_int64(-1) for _ in range(arguments)]
    assert getattr(library, name)(*map(ctypes.byref, numbers)) == 0
    low = [number.value & 0xFFFFFFFF for number in numbers]
    assert [position for position in range(arguments) if low[position] == 0] == list(written)
    whole = [position for position in written if numbers[position].value == 0]
    assert whole == (list(written) if name.startswith(("cusolverDnX", "cusparse", "cudnn")) else []), "int or size_t"
    assert library.last_said() == (b"launch" if name.endswith("Batched") else b"unknown")


def test_a_size_that_is_not_known_fails(tmp_path: Path) -> None:
    assert compiled(tmp_path, "cusparseSomething_bufferSize").cusparseSomething_bufferSize() == 15


def test_words_of_an_error_are_a_text(tmp_path: Path) -> None:
    library = compiled(tmp_path, "cusparseGetErrorString")
    library.cusparseGetErrorString.restype = ctypes.c_char_p
    assert library.cusparseGetErrorString(7) == b"nocuda: an error of a library"


def test_what_a_library_asks_for_is_found_by_name(tmp_path: Path) -> None:
    """Functions and libraries of NVIDIA's, and no others."""
    compiler = tool("cc", "gcc", "clang")
    (tmp_path / "cuda.c").write_text("int cudaMalloc(void) { return 0; }\nint sgemm(void) { return 0; }\n")
    (tmp_path / "user.c").write_text(
        "int cudaMalloc(void); int sgemm(void); int puts(const char *);\n"
        'int f(void) { return cudaMalloc() + sgemm() + puts(""); }\n'
    )
    runtime, user = tmp_path / "libcudart.so.13", tmp_path / "user.so"
    for made, source, *more in ((runtime, "cuda.c", "-Wl,-soname,libcudart.so.13"), (user, "user.c", str(runtime))):
        subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made), str(tmp_path / source), *more], check=True)
    assert symbols.wanted_by([user]) - symbols.wanted_by([]) == {"cudaMalloc"}
    assert symbols.sonames([user]) - symbols.sonames([]) == {"libcudart.so.13"}
    assert symbols.sonames([]) == {"libcuda.so.1", "libnvidia-ml.so.1"}
    subprocess.run([compiler, "-c", "-o", str(tmp_path / "cuda.o"), str(tmp_path / "cuda.c")], check=True)
    assert symbols.defined_in([tmp_path / "cuda.o"]) == {"cudaMalloc", "sgemm"}
