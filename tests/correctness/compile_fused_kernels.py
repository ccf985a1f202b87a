"""Compile the fused kernels' example launches ahead of time, on any machine; print what they take as JSON lines.

Run as a program, in a process without TRITON_INTERPRET, since Triton chooses its interpreter at import:

    python -m tests.correctness.compile_fused_kernels 90 [names of examples]
"""

import json
import re
import subprocess
import sys
import tempfile
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from perflab.lab.kernels.examples import launches
from perflab.lab.launch import SHARED_BYTES, Launch

POINTERS = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.int64: "*i64"}
ALIGNED = [["tt.divisibility", 16]]  # what a launch finds out of pointers from an allocator, and of round numbers


def compile_launch(launch: Launch, capability: int) -> dict[str, Any]:
    """Registers, spilled and shared bytes, and 16-byte loads; specialised as Triton's launcher would."""
    constants, signature, attributes = {}, {}, {}
    for position, parameter in enumerate(launch.kernel.params):
        name = parameter.name
        value = launch.arguments[name]
        if parameter.is_constexpr or (isinstance(value, int) and value == 1):
            constants[name], signature[name] = value, "constexpr"
        elif isinstance(value, Tensor):
            signature[name], attributes[(position,)] = POINTERS[value.dtype], ALIGNED
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0:
                attributes[(position,)] = ALIGNED
    compiled = triton.compile(
        ASTSource(launch.kernel, signature, constants, attributes),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": launch.num_warps, "num_stages": launch.num_stages, "enable_fp_fusion": True},
    )
    return {
        "shared_bytes": compiled.metadata.shared,
        "num_warps": launch.num_warps,
        "wide_loads": len(re.findall(r"ld\.global[.\w:]*\.v4\.b32", compiled.asm["ptx"])),
        **_resources(compiled.asm["cubin"]),
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
    arch, wanted = int(sys.argv[1]), sys.argv[2:]
    for example, given in launches(SHARED_BYTES[arch]).items():
        if not wanted or example in wanted:
            print(json.dumps({"name": example, **compile_launch(given, arch)}), flush=True)
