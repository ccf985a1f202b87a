"""The gated linear recurrence in Triton: launches as data, and the operators that PyTorch sees.

Shapes: q, k, log_decay (B, H, T, K); v, out (B, H, T, V); state, last (B, H, K, V); entering, leaving (B, H, N, K, V).

    perflab::gated_recurrence(q, k, v, log_decay, state, chunk) -> (out, last, entering)
    perflab::gated_recurrence_backward(d_out, d_last, q, k, v, log_decay, entering, chunk) -> (dq, dk, dv, dg, d_state)

What stays for the backward are the inputs and the state that entered each chunk: K V / chunk float32 numbers a token
and head. The states of a head are computed one after the other (`recurrence_states_kernel`), everything else of all
chunks at once. This module imports Triton.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from perflab.lab.kernels import operators
from perflab.lab.kernels.tiles import power_of_two
from perflab.lab.launch import Launch, emulates_bf16, require_runnable
from perflab.lab.recurrence.triton_recurrence_kernels import (
    recurrence_gradients_kernel,
    recurrence_states_kernel,
    recurrence_values_kernel,
)

# Columns of a tile, by bytes of an element: of 64 x 64 float32 numbers each of 256 threads holds 16. Products of
# float32 run without tensor cores, their operands unrolled into registers: at 64 columns they spill. So do the
# gradients, which hold most, in chunks of 64.
_WIDEST = {2: 64, 4: 32}
_NARROWEST = 16
"""The smallest size that tl.dot takes."""
# Offsets within a tile, of 64 rows and up to 64 columns, are 32 bits wide.
_MOST_STRIDE = (2**31 - 1) // 128

# --- Launches ----------------------------------------------------------------------------------------------------


def states_launch(
    x: Tensor, y: Tensor, log_decay: Tensor, first: Tensor | None, states: Tensor, last: Tensor, *,
    backward: bool, chunk: int,
) -> Launch:  # fmt: skip
    """Write the state that enters each chunk, and the last; backward the gradient of what leaves, and the first's."""
    widths = _widths(x, y, chunk)
    tiles = triton.cdiv(widths["K"], widths["BLOCK_K"]) * triton.cdiv(widths["V"], widths["BLOCK_V"])
    arguments: dict[str, Any] = {
        "x_ptr": x, "y_ptr": y, "g_ptr": log_decay, "first_ptr": last if first is None else first,
        "states_ptr": states, "last_ptr": last,
        **_strides(x=x, y=y, g=log_decay),
        "BACKWARD": backward, "HAS_FIRST": first is not None,
        **widths,
    }  # fmt: skip
    return _launch(recurrence_states_kernel, x, tiles, arguments)


def values_launch(
    q: Tensor, k: Tensor, y: Tensor, log_decay: Tensor, states: Tensor, result: Tensor, *, backward: bool, chunk: int
) -> Launch:
    """Write out of v and the entering states; backward dv of d_out and the leaving states' gradients."""
    widths = _widths(q, y, chunk)
    tiles = triton.cdiv(q.shape[2], chunk) * triton.cdiv(widths["V"], widths["BLOCK_V"])
    arguments = {
        "q_ptr": q, "k_ptr": k, "y_ptr": y, "g_ptr": log_decay, "states_ptr": states, "result_ptr": result,
        **_strides(q=q, k=k, y=y, g=log_decay),
        "BACKWARD": backward,
        **widths,
    }  # fmt: skip
    return _launch(recurrence_values_kernel, q, tiles, arguments)


def gradients_launch(
    q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, log_decay: Tensor, entering: Tensor, leaving: Tensor,
    dq: Tensor, dk: Tensor, dg: Tensor, *, chunk: int,
) -> Launch:  # fmt: skip
    """Write dq, dk and dg."""
    widths = _widths(q, v, chunk)
    if chunk == 64:
        widths["BLOCK_K"] = min(widths["BLOCK_K"], 32)
    tiles = triton.cdiv(q.shape[2], chunk) * triton.cdiv(widths["K"], widths["BLOCK_K"])
    arguments = {
        "q_ptr": q, "k_ptr": k, "v_ptr": v, "d_out_ptr": d_out, "g_ptr": log_decay,
        "entering_ptr": entering, "leaving_ptr": leaving, "dq_ptr": dq, "dk_ptr": dk, "dg_ptr": dg,
        **_strides(q=q, k=k, v=v, o=d_out, g=log_decay),
        **widths,
    }  # fmt: skip
    return _launch(recurrence_gradients_kernel, q, tiles, arguments)


def _launch(kernel: Any, whose: Tensor, tiles: int, arguments: dict[str, Any]) -> Launch:
    """So many tiles for each head; one grid axis, since the others end at 65,535."""
    batch, heads, length, _ = whose.shape
    arguments |= {"num_heads": heads, "length": length, "EMULATE_BF16": emulates_bf16(whose.dtype)}
    # Eight warps where tiles of 4 would fill the registers; float32 products spill less with 4.
    many = arguments["BLOCK_T"] == 64 and (whose.dtype.itemsize == 2 or kernel is recurrence_gradients_kernel)
    return Launch(kernel, (batch * heads * tiles,), arguments, whose.device, num_warps=8 if many else 4, num_stages=2)


def _widths(of_keys: Tensor, of_values: Tensor, chunk: int) -> dict[str, int]:
    width_k, width_v = of_keys.shape[-1], of_values.shape[-1]
    widest = _WIDEST[of_values.dtype.itemsize]
    block_k, block_v = (min(widest, max(_NARROWEST, power_of_two(width))) for width in (width_k, width_v))
    return {"K": width_k, "V": width_v, "BLOCK_T": chunk, "BLOCK_K": block_k, "BLOCK_V": block_v}


def _strides(**tensors: Tensor) -> dict[str, int]:
    for name, tensor in tensors.items():
        if max(tensor.stride()[-2:]) > _MOST_STRIDE:
            raise ValueError(
                f"linear_recurrence in Triton takes strides of up to {_MOST_STRIDE} elements between tokens and "
                f"columns, got {tuple(tensor.stride())} for {name}; call .contiguous() on it"
            )
    return {
        f"stride_{name}{dimension}": stride
        for name, tensor in tensors.items()
        for dimension, stride in zip("bhtd", tensor.stride(), strict=True)
    }


# --- For PyTorch -------------------------------------------------------------------------------------------------


def _empty(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    (batch, heads, length, width_k), width_v = q.shape, v.shape[-1]
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    last = torch.empty(batch, heads, width_k, width_v, dtype=torch.float32, device=v.device)
    entering = torch.empty(
        batch, heads, -(-length // chunk), width_k, width_v, dtype=torch.float32, device=v.device
    )  # fmt: skip
    return out, last, entering


def _run(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    require_runnable(q.device, name="linear_recurrence form='triton'", instead="form='chunked', in PyTorch")
    out, last, entering = _empty(q, k, v, log_decay, state, chunk)
    states_launch(k, v, log_decay, state, entering, last, backward=False, chunk=chunk)()
    values_launch(q, k, v, log_decay, entering, out, backward=False, chunk=chunk)()
    return out, last, entering


def _empty_gradients(
    d_out: Tensor,
    d_last: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    entering: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    dg = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    return dq, dk, dv, dg, torch.empty_like(entering[:, :, 0])


def _run_backward(
    d_out: Tensor,
    d_last: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    entering: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv, dg, d_state = _empty_gradients(d_out, d_last, q, k, v, log_decay, entering, chunk)
    leaving = torch.empty_like(entering)
    first = None if d_last is None else d_last.contiguous()
    states_launch(q, d_out, log_decay, first, leaving, d_state, backward=True, chunk=chunk)()
    values_launch(q, k, d_out, log_decay, leaving, dv, backward=True, chunk=chunk)()
    gradients_launch(q, k, v, d_out, log_decay, entering, leaving, dq, dk, dg, chunk=chunk)()
    return dq, dk, dv, dg, d_state


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, log_decay, state, ctx.chunk = inputs
    ctx.save_for_backward(q, k, v, log_decay, output[2])
    ctx.has_state = state is not None
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, d_out: Tensor | None, d_last: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, log_decay, entering = ctx.saved_tensors
    d_out = torch.zeros_like(v) if d_out is None else d_out
    dq, dk, dv, dg, d_state = _recurrence_backward(d_out, d_last, q, k, v, log_decay, entering, ctx.chunk)
    return dq, dk, dv, dg.to(log_decay.dtype), d_state if ctx.has_state else None, None


_recurrence_backward = operators.define(
    "gated_recurrence_backward",
    "(Tensor d_out, Tensor? d_last, Tensor q, Tensor k, Tensor v, Tensor log_decay, Tensor entering, int chunk) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    run=_run_backward,
    fake=_empty_gradients,
)
_recurrence = operators.define(
    "gated_recurrence",
    "(Tensor q, Tensor k, Tensor v, Tensor log_decay, Tensor? state, int chunk) -> (Tensor, Tensor, Tensor)",
    run=_run,
    fake=_empty,
    save=_save,
    gradient=_gradient,
)


@register_flop_formula(torch.ops.perflab.gated_recurrence)
def _flops(
    q_shape: Any, k_shape: Any, v_shape: Any, g_shape: Any, state_shape: Any, chunk: int, *_: Any, **__: Any
) -> int:
    """A token: two products with the state, 4 K V; and of chunk / 2 pairs 2 K for the score and 2 V for a value."""
    tokens, width_k, width_v = int(torch.Size(q_shape[:3]).numel()), int(q_shape[-1]), int(v_shape[-1])
    return tokens * (4 * width_k * width_v + (chunk + 1) * (width_k + width_v))


@register_flop_formula(torch.ops.perflab.gated_recurrence_backward)
def _backward_flops(
    d_out_shape: Any, d_last_shape: Any, q_shape: Any, k_shape: Any, v_shape: Any, *rest: Any, **__: Any
) -> int:
    """Four products with a state, and of each pair its score and value again, dv, dq and dk."""
    chunk = int(rest[2])
    tokens, width_k, width_v = int(torch.Size(q_shape[:3]).numel()), int(q_shape[-1]), int(v_shape[-1])
    return tokens * (8 * width_k * width_v + (chunk + 1) * (3 * width_k + 2 * width_v))


def triton_recurrence(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor]:
    """The output, in the dtype of q, and the state behind the last token, float32.

    log_decay (B, H, T, K) or (B, H, T, 1). `linear_recurrence` checks what is given. The same inputs give
    the same bits: nothing is added up by atomics.
    """
    if state is not None:
        state = state.float().contiguous()
    out, last, _ = _recurrence(q, k, v, log_decay.expand(q.shape), state, chunk)
    return out, last
