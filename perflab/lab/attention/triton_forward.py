"""Attention by the Triton forward kernel: its launch.

Shapes
    q, out             (B, H, N_q, D)
    k, v               (B, H, N_k, D)
    logsumexp          (B, H, N_q), float32, natural logarithm

    out_i = sum_j exp(s_ij - L_i) v_j,    L_i = log sum_j exp(s_ij),    s_ij = scale * q_i . k_j

Tensors may have any strides (transposed, sliced, expanded with stride 0), any length, and any head
dimension up to 256; float16, bfloat16 or float32.

This module imports Triton. On CPU tensors it runs only in Triton's interpreter, which Triton
chooses when it is imported: set TRITON_INTERPRET=1 before that.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.jit import JITFunction

from perflab.lab.attention.triton_forward_kernel import attention_forward_kernel
from perflab.lab.attention.triton_tiles import SM90_SHARED_BYTES, choose_tiles, padded_head_dim

LOG2_E = math.log2(math.e)


def triton_forward(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Launch the kernel on (B, H, N, D) tensors. Returns out in q's dtype and logsumexp in float32.

    RuntimeError where neither the device nor Triton's interpreter can run it.
    """
    require_runnable(q.device)
    batch, num_heads, num_queries, head_dim = q.shape
    out = torch.empty_like(q)
    logsumexp = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    # Triton launches on the current device, which need not be the tensors' own.
    with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
        tiles = choose_tiles("forward", head_dim, q.dtype, shared_memory_bytes(q.device))
        grid = (triton.cdiv(num_queries, tiles.block_q) * batch * num_heads,)
        attention_forward_kernel[grid](
            q, k, v, out, logsumexp,
            *q.stride(), *k.stride(), *v.stride(), *out.stride(),
            num_heads, num_queries, k.shape[-2], scale * LOG2_E,
            IS_CAUSAL=is_causal, EMULATE_BF16=emulates_bf16(q.dtype), HEAD_DIM=head_dim,
            BLOCK_Q=tiles.block_q, BLOCK_K=tiles.block_k, BLOCK_D=padded_head_dim(head_dim),
            num_warps=tiles.num_warps, num_stages=tiles.num_stages,
            enable_fp_fusion=True,  # the default up to Triton 3.9, which warns that 3.10 changes it
        )  # fmt: skip
    return out, logsumexp


def emulates_bf16(dtype: torch.dtype) -> bool:
    """Whether the kernels must do bfloat16 by hand: in Triton's interpreter. See triton_pieces."""
    return dtype == torch.bfloat16 and not isinstance(attention_forward_kernel, JITFunction)


def shared_memory_bytes(device: torch.device) -> int:
    """The most shared memory that one program can have there; in the interpreter, an H100's."""
    if device.type != "cuda":
        return SM90_SHARED_BYTES
    properties = triton.runtime.driver.active.utils.get_device_properties(torch.cuda.current_device())
    return int(properties["max_shared_mem"])


def require_runnable(device: torch.device) -> None:
    """RuntimeError, with what to do, where neither the device nor Triton's interpreter can run a kernel."""
    if not isinstance(attention_forward_kernel, JITFunction):
        # Triton's own library was decorated when Triton was imported: with the variable set only
        # between that import and ours, half of the code would be compiled and half interpreted.
        if isinstance(tl.softmax, JITFunction):
            raise RuntimeError(
                "TRITON_INTERPRET was set after Triton had been imported, so its interpreter cannot run; "
                "set TRITON_INTERPRET=1 in the environment before the process starts"
            )
    elif device.type != "cuda":
        raise RuntimeError(
            f"attention impl 'triton' wants CUDA tensors, got tensors on {device}: move them to a GPU, set "
            f"TRITON_INTERPRET=1 before Triton is imported (slow, for checking), or choose impl='tiled', "
            f"the same algorithm in PyTorch"
        )
