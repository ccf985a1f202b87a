"""CUDA code of a user's own: compiled by nvcc, loaded beside PyTorch, launched."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nocuda import build, library

from .active import child, needs_nocuda, said_by

NVCC = shutil.which("nvcc")
pytestmark = [needs_nocuda, pytest.mark.skipif(NVCC is None, reason="needs nvcc")]

KERNEL = """
#include <cstdio>
#include <cuda_runtime.h>
__constant__ float factors[4];
__global__ void doubled(float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 2 * factors[0];
}
extern "C" int run(float *x, int n, int threads) {
    float ones[4] = {1, 1, 1, 1};
    cudaMemcpyToSymbol(factors, ones, sizeof ones);
    doubled<<<4, threads>>>(x, n);
    cudaError_t error = cudaGetLastError();
    printf("%s: %s\\n", cudaGetErrorName(error), cudaGetErrorString(error));
    fflush(stdout);
    return error;
}
#ifdef PROGRAM
int main() { return run(nullptr, 0, 32); }
#endif
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("extension") / "doubled.cu"
    path.write_text(KERNEL)
    return path


def nvcc(source: Path, made: str, *options: str) -> Path:
    assert NVCC is not None
    path = source.with_name(made)
    subprocess.run([NVCC, "-arch=sm_90", *options, "-o", str(path), str(source)], check=True, capture_output=True)
    return path


def test_an_extension_that_pytorch_builds_is_launched_by_name(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PyTorch's headers, which take nvcc minutes: a library for ``torch.ops`` and ``ctypes``."""
    assert NVCC is not None
    pytest.importorskip("ninja")
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    import torch
    from torch.utils import cpp_extension

    homes = [os.environ.get("CUDA_HOME"), cpp_extension.CUDA_HOME, "/usr/local/cuda"]
    home = next((one for one in homes if one and list(Path(one).glob("lib64/libcudart.so"))), None)
    if home is None:
        pytest.skip("no CUDA toolkit with its runtime to link with")
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", home)
    folder = source.with_name("built")
    folder.mkdir()
    cpp_extension.load("doubled", [str(source)], build_directory=str(folder), is_python_module=False)
    run = ctypes.CDLL(str(folder / "doubled.so")).run
    x = torch.zeros(64, device="cuda")
    library().reset()
    assert run(ctypes.c_void_p(x.data_ptr()), 64, 32) == 0
    assert library().counts().kernels == {"_Z7doubledPfi": 1}
    assert run(ctypes.c_void_p(x.data_ptr()), 64, 4096) == 9, "cudaErrorInvalidConfiguration"
    assert library().launches == 1
    assert build(extensions=[folder / "doubled.so"]).library.is_file()


def test_a_program_with_the_shared_runtime_runs_as_it_is(source: Path) -> None:
    path = nvcc(source, "program", "-cudart=shared", "-DPROGRAM")
    done = child(f"import os; os.execv({str(path)!r}, ['program'])")
    assert (done.returncode, done.stdout, done.stderr) == (0, "cudaSuccess: no error\n", "")


def test_a_runtime_of_its_own_is_told_how_to_be_linked(source: Path) -> None:
    path = nvcc(source, "static.so", "-cudart=static", "-shared", "-Xcompiler=-fPIC")
    done = child(f"import ctypes; ctypes.CDLL({str(path)!r}).run(None, 0, 32)")
    assert "nocuda: a library with a CUDA runtime of its own cannot run here" in done.stderr
    assert "nvcc --cudart=shared" in done.stderr
    assert done.stderr.count("nocuda:") == 1, "once"
    assert "cudaSuccess" not in done.stdout


FAKE = """
const char *whose(void) { return "nvidia's"; }
int cudaGetDeviceCount(int *count) { *count = 77; return 0; }
int cudaRuntimeGetVersion(int *version) { *version = 1; return 0; }
"""


def test_nvidias_own_libraries_are_not_taken_where_they_are_installed(tmp_path: Path) -> None:
    """As a wheel brings them: found by a library's RPATH, before any folder of ours, under the same name."""
    compiler = shutil.which("cc") or "gcc"
    lib = tmp_path / "nvidia" / "cu13" / "lib"
    lib.mkdir(parents=True)
    (tmp_path / "fake.c").write_text(FAKE)
    (tmp_path / "user.c").write_text(
        "int cudaGetDeviceCount(int *); int devices(void) { int n = -1; cudaGetDeviceCount(&n); return n; }\n"
    )
    fake, user = lib / "libcudart.so.13", tmp_path / "user.so"
    named = "-Wl,-soname,libcudart.so.13"
    subprocess.run([compiler, "-shared", "-fPIC", named, "-o", str(fake), str(tmp_path / "fake.c")], check=True)
    origin = "-Wl,-rpath,$ORIGIN/nvidia/cu13/lib,--disable-new-dtags"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", user, tmp_path / "user.c", fake, origin], check=True)
    code = (
        f"import ctypes, sys; print(ctypes.CDLL({str(user)!r}).devices())\n"
        "print(sum('libcudart' in line and 'nvidia/cu13' in line for line in open('/proc/self/maps')))"
    )
    assert said_by(code) == ["1", "0"]
    plain = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "NOCUDA_LIBRARY")}
    done = subprocess.run([sys.executable, "-c", code], env=plain, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "77", "without nocuda it is theirs"
