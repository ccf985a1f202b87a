"""Honest candidates that do what attacks do too: threads, caches, compilers, files, buffers. Sent as a text."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

Candidate = Callable[[Tensor, Tensor], Tensor]
CONTROLS: dict[str, Candidate] = {}
plans: dict[object, object] = {}
times: dict[str, float] = {}


def honest(function: Candidate) -> Candidate:
    CONTROLS[function.__name__] = function
    return function


def scaled(y: Tensor) -> Tensor:
    return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)


@honest
def calls_a_library(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(F.linear(x, w.T), (x.shape[-1],), eps=1e-6)


@honest
def has_joined_threads(x: Tensor, w: Tensor) -> Tensor:
    out = torch.empty_like(x)

    def half(rows: slice) -> None:
        out[rows] = scaled(x[rows] @ w)

    threads = [threading.Thread(target=half, args=(one,)) for one in (slice(0, 64), slice(64, None))]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return out


@honest
def has_a_pool(x: Tensor, w: Tensor) -> Tensor:
    pool = plans.setdefault("pool", ThreadPoolExecutor(2))
    return torch.cat(list(pool.map(lambda rows: scaled(rows @ w), x.chunk(2))))  # type: ignore[attr-defined]


@honest
def sets_threads(x: Tensor, w: Tensor) -> Tensor:
    torch.set_num_threads(2)
    return scaled(x @ w)


@honest
def keeps_plans(x: Tensor, w: Tensor) -> Tensor:
    chunks = plans.setdefault((x.shape, w.shape), 4)
    return torch.cat([scaled(one @ w) for one in x.chunk(chunks)])  # type: ignore[call-overload]


@honest
def tunes_itself(x: Tensor, w: Tensor) -> Tensor:
    import time

    forms = {"whole": lambda: scaled(x @ w), "parts": lambda: torch.cat([scaled(one @ w) for one in x.chunk(2)])}
    for name, form in forms.items():
        if name not in times:
            began = time.perf_counter()
            form()
            times[name] = time.perf_counter() - began
    return forms[min(times, key=times.__getitem__)]()


@honest
def reuses_a_workspace(x: Tensor, w: Tensor) -> Tensor:
    space = plans.setdefault("space", torch.empty_like(x))
    torch.mm(x, w, out=space)  # type: ignore[call-overload]
    return scaled(space)  # type: ignore[arg-type]


@honest
def compiles_at_its_first_call(x: Tensor, w: Tensor) -> Tensor:
    form = plans.setdefault("compiled", torch.compile(lambda x, w: scaled(x @ w)))
    return form(x, w)  # type: ignore[operator]


@honest
def builds_a_library(x: Tensor, w: Tensor) -> Tensor:
    import ctypes

    if "library" not in plans:
        folder = Path(os.environ["TMPDIR"])
        code = (
            "void divide(float *y, float *by, long n, long d) { for (long i = 0; i < n * d; i++) y[i] *= by[i / d]; }"
        )
        (folder / "divide.c").write_text(code)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "divide.c", "-o", "divide.so"], cwd=folder, check=True)
        plans["library"] = ctypes.CDLL(str(folder / "divide.so"))
    y = x @ w
    by = torch.rsqrt(y.square().mean(-1) + 1e-6)
    pointers = [ctypes.c_void_p(one.data_ptr()) for one in (y, by)]
    plans["library"].divide(*pointers, ctypes.c_long(y.shape[0]), ctypes.c_long(y.shape[1]))  # type: ignore
    return y


@honest
def runs_triton(x: Tensor, w: Tensor) -> Tensor:
    import triton
    import triton.language as tl

    y = x @ w
    if "kernel" not in plans:

        @triton.jit
        def kernel(y, out, n, SIZE: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
            at = tl.program_id(0) * n + tl.arange(0, SIZE)
            row = tl.load(y + at, mask=tl.arange(0, SIZE) < n, other=0.0)
            scale = tl.rsqrt(tl.sum(row * row) / n + 1e-6)
            tl.store(out + at, row * scale, mask=tl.arange(0, SIZE) < n)

        globals()["tl"] = tl
        plans["kernel"] = kernel
    out = torch.empty_like(y)
    plans["kernel"][(16,)](y, out, y.shape[1], SIZE=512)  # type: ignore[index]
    out[16:] = scaled(y[16:])
    return out


@honest
def uses_numpy(x: Tensor, w: Tensor) -> Tensor:
    y = x.numpy() @ w.numpy()
    return torch.from_numpy(y / ((y * y).mean(-1, keepdims=True) + 1e-6) ** 0.5)


@honest
def returns_columns(x: Tensor, w: Tensor) -> Tensor:
    return scaled((w.T @ x.T).T)


@honest
def returns_a_view(x: Tensor, w: Tensor) -> Tensor:
    larger = torch.zeros(x.shape[0] + 2, x.shape[1])
    larger[1:-1] = scaled(x @ w)
    return larger[1:-1]


@honest
def needs_no_gradients(x: Tensor, w: Tensor) -> Tensor:
    with torch.inference_mode():
        return scaled(x @ w).clone()


@honest
def writes_to_its_folder(x: Tensor, w: Tensor) -> Tensor:
    Path(os.environ["TMPDIR"], "tuned.json").write_text('{"block": 64}')
    print("tuned", file=sys.stderr)
    return scaled(x @ w)


@honest
def draws_at_random(x: Tensor, w: Tensor) -> Tensor:
    rows = torch.randperm(x.shape[0])
    out = torch.empty_like(x)
    out[rows] = scaled(x[rows] @ w)
    return out


@honest
def splits_the_sum(x: Tensor, w: Tensor) -> Tensor:
    half = x.shape[1] // 2
    return scaled(x[:, half:] @ w[half:] + x[:, :half] @ w[:half])


@honest
def is_cached_by_size(x: Tensor, w: Tensor) -> Tensor:
    return scaled(x @ w) * _one(x.shape[1])


@functools.lru_cache
def _one(length: int) -> Tensor:
    return torch.ones(length)
