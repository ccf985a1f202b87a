"""Compile the Triton forward kernel ahead of time, on any machine; print what it takes as JSON lines.

Run as a program, in a process without TRITON_INTERPRET, since Triton chooses its interpreter at import:

    python -m tests.correctness.compile_triton_forward '[["bfloat16", 64, 90, true], ...]'

with [dtype, head dimension, compute capability, is_causal] for each configuration.
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

from perflab.lab.attention.triton_forward_kernel import attention_forward_kernel
from perflab.lab.attention.triton_tiles import (
    SM80_SHARED_BYTES,
    SM90_SHARED_BYTES,
    choose_tiles,
    padded_head_dim,
)

SHARED_LIMIT_BYTES = {80: SM80_SHARED_BYTES, 90: SM90_SHARED_BYTES}
POINTER_TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}
ALIGNED = [["tt.divisibility", 16]]  # what a launch finds out of contiguous tensors


def compile_forward(dtype: torch.dtype, head_dim: int, capability: int, is_causal: bool) -> dict[str, Any]:
    """What the kernel takes in the configuration that a launch would choose."""
    tiles = choose_tiles(head_dim, dtype, SHARED_LIMIT_BYTES[capability])
    constants = {
        "IS_CAUSAL": is_causal,
        "EMULATE_BF16": False,
        "HEAD_DIM": head_dim,
        "BLOCK_Q": tiles.block_q,
        "BLOCK_K": tiles.block_k,
        "BLOCK_D": padded_head_dim(head_dim),
        **{f"stride_{tensor}d": 1 for tensor in "qkvo"},
    }
    signature, attributes = {}, {}
    for position, name in enumerate(attention_forward_kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name] = "*fp32" if name == "logsumexp_ptr" else POINTER_TYPES[dtype]
            attributes[(position,)] = ALIGNED
        elif name.startswith("stride_"):
            signature[name] = "i32"
            if head_dim % 16 == 0:
                attributes[(position,)] = ALIGNED
        else:
            signature[name] = "fp32" if name == "scale_log2" else "i32"
    compiled = triton.compile(
        ASTSource(attention_forward_kernel, signature, constants, attributes),
        target=GPUTarget("cuda", capability, 32),
        options={
            "num_warps": tiles.num_warps,
            "num_stages": tiles.num_stages,
            "enable_fp_fusion": True,
        },
    )
    return {
        "shared_bytes": compiled.metadata.shared,
        "predicted_shared_bytes": tiles.shared_bytes(head_dim, dtype.itemsize),
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
    for dtype_name, dim, arch, causal in json.loads(sys.argv[1]):
        print(json.dumps(compile_forward(getattr(torch, dtype_name), dim, arch, causal)))
