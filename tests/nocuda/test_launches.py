"""Kernels: which are launched, and what a launch refuses."""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from nocuda import Gpu, Seen, library
from nocuda.library import demangled

from .active import needs_nocuda, said_by, told

pytestmark = needs_nocuda


def kernels_of(work: object) -> list[str]:
    with told(Seen.LAUNCH) as seen:
        work()  # type: ignore[operator]
    return [demangled(one.name) for one in seen]


def test_an_operators_kernel_has_its_name() -> None:
    a = torch.zeros(8, device="cuda")
    (kernel,) = kernels_of(lambda: a + a)
    assert kernel.startswith("void at::native::vectorized_elementwise_kernel<")
    assert "CUDAFunctor_add<float>" in kernel
    assert kernels_of(lambda: torch.mm(a[None], a[:, None])) in (
        ["cublasSgemm_v2"],
        ["cublasGemmEx"],
        ["cublasLtMatmul"],
    )
    assert kernels_of(lambda: a.view(2, 4)) == []


def test_autocast_runs_products_in_bf16_and_casts_each_weight_once() -> None:
    layer, x = torch.nn.Linear(64, 64, bias=False).cuda(), torch.zeros(8, 64, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        first = kernels_of(lambda: layer(x))
        second = kernels_of(lambda: layer(x))
        assert layer(x).dtype == torch.bfloat16
    assert [len(first), len(second)] == [3, 2], "the weight's copy is kept within"
    assert kernels_of(lambda: layer(x)) != first[-1:]


def test_foreach_and_fused_optimizers_launch_once_for_many() -> None:
    def step(**how: bool) -> int:
        parameters = [torch.nn.Parameter(torch.zeros(16, device="cuda")) for _ in range(8)]
        for one in parameters:
            one.grad = torch.zeros_like(one)
        optimizer = torch.optim.AdamW(parameters, **how)
        optimizer.step()
        names = kernels_of(optimizer.step)
        assert any("multi_tensor_apply" in name for name in names) is not (how == {"foreach": False})
        return len(names)

    one_by_one, foreach, fused, default = step(foreach=False), step(foreach=True), step(fused=True), step()
    assert fused < foreach < one_by_one
    assert fused == 2, "the step's number, and everything else"
    assert default == foreach


def test_a_gradient_scaler_waits_for_the_device_once_and_finds_nothing_infinite() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4, device="cuda"))
    optimizer, scaler = torch.optim.SGD([parameter], lr=0.1), torch.amp.GradScaler("cuda")
    scaler.scale(parameter.sum()).backward()
    with told(Seen.SYNCHRONISATION) as waits:
        scaler.step(optimizer)
    assert len(waits) == 1
    assert len(kernels_of(scaler.update)) == 1


def test_attention_has_the_backend_that_the_gpu_can_run() -> None:
    """From compute capability 8.0 flash attention, and on 7.5 the memory-efficient one."""
    code = (
        "import torch\nfrom nocuda import library\nfrom nocuda.library import demangled\n"
        "q = torch.zeros(1, 2, 64, 64, device='cuda', dtype=torch.float16)\n"
        "library().reset()\n"
        "torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)\n"
        "print(torch.cuda.get_device_capability(), ' '.join(map(demangled, library().counts().kernels)))"
    )
    (ampere,) = said_by(code, Gpu(name="NVIDIA A100-SXM4-80GB", capability=80, multiprocessors=108))
    (turing,) = said_by(code, Gpu(name="Tesla T4", capability=75, multiprocessors=40, total_bytes=16 << 30))
    assert ampere.startswith("(8, 0) ")
    assert "flash_fwd" in ampere
    assert turing.startswith("(7, 5) ")
    assert "fmha_cutlassF" in turing
    assert "sm75" in turing
    q = torch.zeros(1, 2, 64, 64, device="cuda", dtype=torch.float16)
    for backend, kernel in {SDPBackend.FLASH_ATTENTION: "flash_fwd", SDPBackend.EFFICIENT_ATTENTION: "fmha_"}.items():
        with sdpa_kernel(backend):
            launched = kernels_of(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q))
        assert any(kernel in one for one in launched)


TRITON = """
import torch, triton
import triton.language as tl
from nocuda import library

@triton.jit
def copy(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at))

@triton.jit
def products(x, y, M: tl.constexpr, K: tl.constexpr):
    rows, columns, inner = tl.arange(0, M), tl.arange(0, M), tl.arange(0, K)
    one, two = tl.load(x + rows[:, None] * K + inner), tl.load(x + inner[:, None] * M + columns)
    tl.store(y + rows[:, None] * M + columns, tl.dot(one, two))

x = torch.zeros(256 * 256, device="cuda")
kernel = copy[(4,)](x, x, BLOCK=64)
print(library().counts().kernels["copy"], kernel.metadata.target.arch, len(kernel.asm["cubin"]) > 1000)
try:
    products[(1,)](x.half(), x, M=64, K=2048)
except triton.runtime.errors.OutOfResources as error:
    print(error)
graph = torch.cuda.CUDAGraph()
before = library().launches
with torch.cuda.graph(graph):
    copy[(4,)](x, x, BLOCK=64)
print(library().launches - before)
graph.replay()
print(library().launches - before)
"""


def test_triton_compiles_with_its_own_assembler_and_launches(tmp_path: Path) -> None:
    """``ptxas`` is real; a kernel that needs more shared memory than a block can have is refused by Triton itself."""
    path = tmp_path / "kernels.py"
    path.write_text(TRITON)
    lines = said_by(f"import runpy; runpy.run_path({str(path)!r})", TRITON_CACHE_DIR=str(tmp_path / "cache"))
    assert (lines[0], lines[2:]) == ("1 90 True", ["0", "1"])
    assert lines[1].startswith("out of resource: shared memory, Required: ")
    assert "Hardware limit: 232448" in lines[1]


GLUON = """
import torch
from nocuda import library
from perflab.lab.attention import attention
from perflab.lab.attention.triton_tuning import tiles_in_use
x = torch.ones(1, 256, 2, 128, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
padded = torch.ones(1, 2, 256, 136, device="cuda", dtype=torch.bfloat16)[..., :128]
for given, is_causal in ((x, False), (x, True), (padded, False)):
    q, k, v = (given.detach().requires_grad_() for _ in "qkv")
    out = attention(q, k, v, impl="triton-gluon", is_causal=is_causal)
    library().reset()
    out.backward(torch.ones_like(out))
    print(*(name for name in sorted(library().counts().kernels) if "attention" in name))
print(*sorted({kernel for kernel, *_ in tiles_in_use()}))
"""


def test_the_backward_in_gluon_compiles_for_an_a100_and_is_launched(tmp_path: Path) -> None:
    path = tmp_path / "backward.py"
    path.write_text(GLUON)
    run, cache = f"import runpy; runpy.run_path({str(path)!r})", str(tmp_path / "cache")
    ampere = Gpu(name="NVIDIA A100-SXM4-80GB", capability=80, multiprocessors=108)
    *launched, ran = said_by(run, ampere, TRITON_CACHE_DIR=cache, PERFLAB_AUTOTUNE="0")
    assert launched == [
        *["attention_delta_kernel attention_one_pass_gluon_kernel"] * 2,
        "attention_delta_kernel attention_one_pass_kernel",  # with strides that Triton knows too little of
    ]
    assert ran == "forward one_pass one_pass_gluon"


COMPILED = """
import torch
from nocuda import library

def f(x, y):
    return torch.nn.functional.gelu(x @ y).sum(-1)

x = torch.zeros(64, 64, device="cuda")
torch.compile(f)(x, x)
library().reset()
torch.compile(f)(x, x)
print(sorted(one for one in library().counts().kernels))
replayed = torch.compile(f, mode="reduce-overhead")
for _ in range(4):
    replayed(x, x)
library().reset()
replayed(x, x)
counts = library().counts()
print(counts.launches, counts.replayed, counts.calls["cudaGraphLaunch"])
"""


def test_inductor_compiles_and_replays_graphs(tmp_path: Path) -> None:
    path = tmp_path / "compiled.py"
    path.write_text(COMPILED)
    run = f"import runpy; runpy.run_path({str(path)!r})"
    lines = said_by(run, TORCHINDUCTOR_CACHE_DIR=str(tmp_path), TORCHINDUCTOR_COMPILE_THREADS="1")
    assert "triton_per_fused_gelu" in lines[0]
    assert "cublas" in lines[0]
    launches, replayed, graphs = map(int, lines[1].split())
    assert (replayed, graphs) == (2, 1)
    assert launches >= replayed


@pytest.mark.parametrize(
    ("grid", "block", "shared", "said"),
    [
        ((1, 1, 1), (2048, 1, 1), 0, 1),
        ((1, 1, 1), (32, 32, 2), 0, 1),
        ((0, 1, 1), (32, 1, 1), 0, 1),
        ((1, 65536, 1), (32, 1, 1), 0, 1),
        ((1, 1, 1), (32, 1, 65), 0, 1),
        ((1, 1, 1), (32, 1, 1), 233_000, 1),
        ((2147483647, 65535, 65535), (1024, 1, 1), 232_448, 0),
    ],
)
def test_a_launch_that_no_gpu_would_take_is_refused(
    grid: tuple[int, int, int], block: tuple[int, int, int], shared: int, said: int
) -> None:
    """1: an invalid value, which is all that the driver says of it; for the runtime see test_extensions.py."""
    c = ctypes.CDLL(os.environ["NOCUDA_LIBRARY"])
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert c.cuModuleLoadData(ctypes.byref(module), b"") == 0
    assert c.cuModuleGetFunction(ctypes.byref(function), module, b"kernel_of_a_test") == 0
    before = library().launches
    assert c.cuLaunchKernel(function, *grid, *block, shared, None, None, None) == said
    assert library().launches - before == (not said)
    c.cudaGetLastError()


def test_the_report_at_exit_has_all_counts(tmp_path: Path) -> None:
    code = "import torch; x = torch.zeros(4, device='cuda'); x.add_(1).cpu(); x.cuda()"
    said_by(code, NOCUDA_REPORT=str(tmp_path / "report"))
    (path,) = tmp_path.iterdir()
    report = json.loads(path.read_text())
    assert report["launches"] == sum(report["kernels"].values()) == 2
    assert report["copies"]["device to host"] == [1, 16]
    assert report["calls"]["cudaMalloc"] == 1
