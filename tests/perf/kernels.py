"""The lab's Triton kernels in the configurations that they are shipped in, for `perflab kernels` and its cases.

A launch is data (`perflab.lab.launch.Launch`): here it is made of tensors on `meta`, and compiled instead of run.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from perflab.lab.attention.triton_backward_kernel import (
    attention_delta_kernel,
    attention_dk_dv_kernel,
    attention_dq_kernel,
)
from perflab.lab.attention.triton_forward_kernel import attention_forward_kernel
from perflab.lab.attention.triton_tiles import DELTA_ROWS, Tiles, choose_tiles, padded_head_dim
from perflab.lab.launch import Launch
from perflab.static import KernelExample
from perflab.static.architectures import ARCHITECTURES

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
HEAD_DIMS = (64, 128)


def examples(arch: int) -> list[KernelExample]:
    """All that are shipped, as they would be launched on a GPU of that architecture."""
    return [example_of(name, launch) for name, launch in attention_launches(arch).items()]


def example_of(name: str, launch: Launch) -> KernelExample:
    """A launch as an example of it."""
    return KernelExample(
        name=name,
        kernel=launch.kernel,
        arguments=launch.arguments,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        options={"enable_fp_fusion": True},  # as Launch has it
    )


def attention_launches(arch: int) -> dict[str, Launch]:
    """Attention, causal, forward and backward; B * H * N of a usual training step."""
    return {
        f"attention-{kernel}-{dtype}-d{head_dim}": _attention_launch(kernel, DTYPES[dtype], head_dim, arch)
        for kernel in _KERNELS
        for dtype in DTYPES
        for head_dim in HEAD_DIMS
    }


_KERNELS = {
    "forward": attention_forward_kernel,
    "delta": attention_delta_kernel,
    "dk-dv": attention_dk_dv_kernel,
    "dq": attention_dq_kernel,
}


def _attention_launch(kernel: str, dtype: torch.dtype, head_dim: int, arch: int) -> Launch:
    """The arguments that `triton_forward` and `triton_backward` give their kernels, by name."""
    batch, num_heads, length = 4, 12, 1024
    tensor = torch.empty(batch, num_heads, length, head_dim, dtype=dtype, device="meta")
    ends = torch.empty(batch, num_heads, length, dtype=torch.float32, device="meta")
    tiles = Tiles(DELTA_ROWS, 0, num_warps=4, num_stages=3)
    if kernel != "delta":
        tiles = choose_tiles(kernel.replace("-", "_"), head_dim, dtype, ARCHITECTURES[arch].shared_limit_bytes)
    constants = {
        "IS_CAUSAL": True,
        "EMULATE_BF16": False,
        "HAS_D_LOGSUMEXP": True,
        "HEAD_DIM": head_dim,
        "BLOCK_Q": tiles.block_q,
        "BLOCK_K": tiles.block_k,
        "BLOCK_D": padded_head_dim(head_dim),
    }
    lengths = {"num_heads": num_heads, "num_queries": length, "num_keys": length, "scale": 0.125, "scale_log2": 0.18}
    strides = dict(zip("bhnd", tensor.stride(), strict=True))

    def given(name: str) -> Any:
        if name in constants or name in lengths:
            return constants.get(name, lengths.get(name))
        if re.fullmatch(r"stride_\w+", name):
            return strides[name[-1]]
        return ends if name in ("logsumexp_ptr", "d_logsumexp_ptr", "delta_ptr") else tensor

    function = _KERNELS[kernel]
    return Launch(
        kernel=function,
        grid=(1,),
        arguments={name: given(name) for name in function.arg_names},
        device=tensor.device,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
