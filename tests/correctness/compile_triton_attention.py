"""Compile the Triton attention kernels ahead of time, on any machine; print what they take as JSON lines.

Run as a program, in a process without TRITON_INTERPRET, since Triton chooses its interpreter at import:

    python -m tests.correctness.compile_triton_attention '[["forward", "bfloat16", 64, 90, true], ...]'

with [kernel, dtype, head dimension, compute capability, is_causal] for each configuration, and, to try
others than a launch would choose, [block_q, block_k, num_warps, num_stages] behind them.
"""

import json
import re
import subprocess
import sys
import tempfile
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from perflab.lab.attention.triton_backward_kernel import (
    attention_delta_kernel,
    attention_dk_dv_kernel,
    attention_dq_kernel,
)
from perflab.lab.attention.triton_forward_kernel import attention_forward_kernel
from perflab.lab.attention.triton_tiles import (
    DELTA_ROWS,
    SM80_SHARED_BYTES,
    SM90_SHARED_BYTES,
    Tiles,
    choose_tiles,
    padded_head_dim,
)

KERNELS = {"forward": attention_forward_kernel, "dk_dv": attention_dk_dv_kernel, "dq": attention_dq_kernel}
KERNELS["delta"] = attention_delta_kernel
DELTA_TILES = Tiles(DELTA_ROWS, 0, num_warps=4, num_stages=3)
"""What its launch leaves to Triton, as Triton chooses it."""
SHARED_LIMIT_BYTES = {80: SM80_SHARED_BYTES, 90: SM90_SHARED_BYTES}
POINTER_TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}
FLOAT32 = {
    "logsumexp_ptr": "*fp32",
    "d_logsumexp_ptr": "*fp32",
    "delta_ptr": "*fp32",
    "scale": "fp32",
    "scale_log2": "fp32",
}
ALIGNED = [["tt.divisibility", 16]]  # what a launch finds out of contiguous tensors


def compile_kernel(
    name: str, dtype: torch.dtype, head_dim: int, capability: int, is_causal: bool, tiles: Tiles | None = None
) -> dict[str, Any]:
    """What the kernel takes in the configuration that a launch would choose, or in these tiles."""
    kernel = KERNELS[name]
    if tiles is None:
        limit = SHARED_LIMIT_BYTES[capability]
        tiles = DELTA_TILES if name == "delta" else choose_tiles(name, head_dim, dtype, limit)
    constants = {
        "IS_CAUSAL": is_causal,
        "HAS_D_LOGSUMEXP": True,
        "EMULATE_BF16": False,
        "HEAD_DIM": head_dim,
        "BLOCK_Q": tiles.block_q,
        "BLOCK_K": tiles.block_k,
        "BLOCK_D": padded_head_dim(head_dim),
        **{argument: 1 for argument in kernel.arg_names if re.fullmatch(r"stride_\w+d", argument)},
    }
    constants = {argument: value for argument, value in constants.items() if argument in kernel.arg_names}
    signature, attributes = {}, {}
    for position, argument in enumerate(kernel.arg_names):
        if argument in constants:
            signature[argument] = "constexpr"
        elif argument in FLOAT32:
            signature[argument] = FLOAT32[argument]
        elif argument.endswith("_ptr"):
            signature[argument] = POINTER_TYPES[dtype]
        else:
            signature[argument] = "i32"
        divisible = argument.endswith("_ptr") or (argument.startswith("stride_") and head_dim % 16 == 0)
        if divisible and argument not in constants:
            attributes[(position,)] = ALIGNED
    compiled = triton.compile(
        ASTSource(kernel, signature, constants, attributes),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": tiles.num_warps, "num_stages": tiles.num_stages, "enable_fp_fusion": True},
    )
    return {
        "shared_bytes": compiled.metadata.shared,
        "predicted_shared_bytes": None if name == "delta" else tiles.shared_bytes(name, head_dim, dtype.itemsize),
        "shared_limit_bytes": SHARED_LIMIT_BYTES[capability],
        **_resources(compiled.asm["cubin"]),
        "wgmma": compiled.asm["ptx"].count("wgmma.mma_async"),
        "mma": compiled.asm["ptx"].count("mma.sync"),
        "tf32": "tf32" in compiled.asm["ptx"],
    }


def _resources(cubin: bytes) -> dict[str, int]:
    """Registers a thread, and the bytes of local memory that a spill would take."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", text).groups()
    return {"registers": int(registers), "spilled_bytes": int(stack)}


if __name__ == "__main__":
    for kernel_name, dtype_name, dim, arch, causal, *other in json.loads(sys.argv[1]):
        given = Tiles(*other) if other else None
        print(json.dumps(compile_kernel(kernel_name, getattr(torch, dtype_name), dim, arch, causal, given)), flush=True)
