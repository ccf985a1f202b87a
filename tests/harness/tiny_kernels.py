"""Kernels for the tests of the compiled tier: one that is fine, and one for each thing that can be wrong."""

# ruff: noqa: N803
# Compile-time constants are upper case, as Triton code has them.

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from perflab.compiled.compiler import KernelExample


@triton.jit
def add(x_ptr, y_ptr, out_ptr, length, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, at < length) + tl.load(y_ptr + at, at < length), at < length)


@triton.jit
def product(a_ptr, b_ptr, out_ptr, depth, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    rows, columns, within = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, DEPTH)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, depth, DEPTH):
        a = tl.load(a_ptr + rows[:, None] * depth + (start + within)[None, :])
        b = tl.load(b_ptr + (start + within)[:, None] * COLUMNS + columns[None, :])
        total = tl.dot(a, b, total)
    tl.store(out_ptr + rows[:, None] * COLUMNS + columns[None, :], total)


@triton.jit
def product_by_tma(a, b, out, depth, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, depth, DEPTH):
        total = tl.dot(a.load([0, start]), b.load([start, 0]), total)
    out.store([0, 0], total.to(tl.bfloat16))


@triton.jit
def unknown_name(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), there_is_no_such_name)  # noqa: F821


@triton.jit
def every_kind(tensor, half, whole, multiple, one, large, number, flag, nothing, BLOCK: tl.constexpr):
    tl.store(tensor, number)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def of_product(name: str, rows: int, columns: int, depth: int, **launch: Any) -> KernelExample:
    arguments = {"a_ptr": meta(rows, 1024), "b_ptr": meta(1024, columns)}
    arguments |= {"out_ptr": meta(rows, columns, dtype=torch.float32), "depth": 1024}
    sizes = {"ROWS": rows, "COLUMNS": columns, "DEPTH": depth}
    return KernelExample(name, product, {**arguments, **sizes}, **launch)


def by_tma() -> KernelExample:
    blocks = {"a": (128, 64), "b": (64, 128), "out": (128, 128)}
    wholes = {"a": (128, 1024), "b": (1024, 128), "out": (128, 128)}
    descriptors = {name: TensorDescriptor.from_tensor(meta(*wholes[name]), list(blocks[name])) for name in blocks}
    return KernelExample(
        "tma", product_by_tma, {**descriptors, "depth": 1024, "ROWS": 128, "COLUMNS": 128, "DEPTH": 64}
    )


X = meta(4096, dtype=torch.float32)
ADD = KernelExample("add", add, {"x_ptr": X, "y_ptr": X, "out_ptr": X, "length": 4096, "BLOCK": 1024})
FINE = [ADD, of_product("product", 128, 128, 64)]
BROKEN = [
    of_product("spilling", 64, 64, 32, num_warps=1, num_stages=1, options={"maxnreg": 32}),
    of_product("past-the-limit", 64, 256, 128, num_warps=8, num_stages=3),
    KernelExample("unknown-name", unknown_name, {"x_ptr": X, "BLOCK": 16}),
]
TMA = [by_tma()]
EVERY_KIND = KernelExample(
    "every-kind",
    every_kind,
    {
        "tensor": X,
        "half": meta(3, dtype=torch.float16),
        "whole": 7,
        "multiple": 48,
        "one": 1,
        "large": 2**40,
        "number": 0.5,
        "flag": True,
        "nothing": None,
        "BLOCK": 16,
    },
)


def dying(arch: int) -> list[KernelExample]:
    """As where the compiler takes its process down."""
    print("LLVM ERROR: cannot select this", file=sys.stderr, flush=True)
    os._exit(7)


def hanging(arch: int) -> list[KernelExample]:
    """As where the compiler comes to no end, and neither does what it has started."""
    started = subprocess.Popen(["sleep", "600"])
    with open(os.environ["HANGING_PIDS"], "w") as file:
        file.write(f"{os.getpid()} {started.pid}")
    started.wait()
    return []


def silent(arch: int) -> list[KernelExample]:
    """As where the compiler closes all its files, and stays."""
    os.closerange(0, 256)
    time.sleep(600)
    return []


def by_architecture(arch: int) -> list[KernelExample]:
    """Larger tiles where there is more shared memory."""
    return [ADD, *([of_product("large", 128, 256, 64)] if arch >= 90 else [])]


def no_wider_than_the_sum(configs: list[Any], named: dict[str, Any], **rest: Any) -> list[Any]:
    """A pruning rule that reads the arguments."""
    return [config for config in configs if config.kwargs["DEPTH"] <= named["depth"]]


PRODUCT_CONFIGS = [
    triton.Config({"COLUMNS": 64, "DEPTH": 32}, num_warps=4, num_stages=2),
    triton.Config({"COLUMNS": 256, "DEPTH": 128}, num_warps=8, num_stages=4),
    triton.Config({"COLUMNS": 64, "DEPTH": 32}, num_warps=4, num_stages=2, maxnreg=128),
    triton.Config({"COLUMNS": 64, "DEPTH": 2048}, num_warps=4, num_stages=1),
]
tuned_product = triton.autotune(
    PRODUCT_CONFIGS, key=["depth"], prune_configs_by={"early_config_prune": no_wider_than_the_sum}
)(triton.heuristics({"ROWS": lambda given: 64 if given["COLUMNS"] < 256 else 128})(product))
_WHOLES = {"a_ptr": meta(128, 1024), "b_ptr": meta(1024, 256), "out_ptr": meta(128, 256, dtype=torch.float32)}
TUNED = [KernelExample("tuned", tuned_product, {**_WHOLES, "depth": 1024})]
NONE_FITS = [
    KernelExample(
        "none-fits",
        triton.autotune(PRODUCT_CONFIGS[1:2] * 2, key=["depth"])(product),
        {**_WHOLES, "depth": 1024, "ROWS": 128},
    )
]


@triton.jit
def refusing(x_ptr, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK <= 16, "too wide")
    tl.store(x_ptr + tl.arange(0, BLOCK), 1.0)


REFUSING = [
    KernelExample(
        "refusing",
        triton.autotune([triton.Config({"BLOCK": size}) for size in (16, 32)], key=[])(refusing),
        {"x_ptr": X},
    )
]
