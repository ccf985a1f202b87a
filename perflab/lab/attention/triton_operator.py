"""FlashAttention-2 in Triton as PyTorch operators, so that all of PyTorch sees through it.

Shapes: q, out, d_out, dq (B, H, N_q, D) or (B, N_q, D); k, v, dk, dv (B, H_kv, N_k, D) or (B, N_k, D);
logsumexp (B, H, N_q) or (B, N_q), float32.

    perflab::flash_attention(q, k, v, scale, softcap, lower, upper) -> (out, logsumexp)
    perflab::flash_attention_tma, the same by way of Hopper's TMA
    perflab::flash_attention_one_pass, the same with another derivative
    perflab::flash_attention_gluon, with that derivative's kernel in Gluon where it takes the tensors
    perflab::flash_attention_backward(d_out, d_logsumexp, q, k, v, out, logsumexp, delta, scale, ...) -> (dq, dk, dv)
    perflab::flash_attention_backward_one_pass(..., logsumexp, delta, dq_sum, scale, ...) -> (dq, dk, dv)
    perflab::flash_attention_backward_gluon, the same

with the band lower <= j - i <= upper of `scoring`, and its sinks. The backward operators write delta, which has the
shape and dtype of logsumexp; those of one pass add up dq by atomics in dq_sum, (B, H, N_q, D) of float32 zeros. Both
are memory of the caller's, since predictions and torch.compile see none that an operator takes for itself.

Each has an implementation for CUDA (and for the CPU, in Triton's interpreter), one that only makes shapes (fake
tensors, torch.compile), and its FLOPs (torch.utils.flop_counter); those of the forward have their derivative and a rule
for autocast: inputs are cast to its dtype, as PyTorch does for its own attention.

They are defined by `torch.library.Library` rather than `custom_op`: its checks for aliases and changed inputs at every
call are work on the host that short sequences would wait for. The tests make those checks.

Inputs are as `FlashAttentionTriton` checks them: the operators themselves are not for calling.
This module imports Triton.
"""

# mypy: disable-error-code="no-untyped-call"
# torch.library.Library has no types.

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from perflab.lab.attention.scoring import Scoring, pairs_in_band
from perflab.lab.attention.tiled import refuse_second_derivative
from perflab.lab.attention.triton_launches import delta_launch
from perflab.lab.attention.triton_tiles import one_pass_tiles
from perflab.lab.attention.triton_tuning import (
    run_dk_dv,
    run_dq,
    run_forward,
    run_forward_tma,
    run_one_pass,
    run_one_pass_in_gluon,
)
from perflab.lab.launch import architecture_of, require_runnable, run_prepared

_RULES = "float scale, float? softcap, SymInt? lower, SymInt? upper, SymInt sinks"
_library = torch.library.Library("perflab", "FRAGMENT")
for _name in ("flash_attention", "flash_attention_tma", "flash_attention_one_pass", "flash_attention_gluon"):
    _library.define(f"{_name}(Tensor q, Tensor k, Tensor v, {_RULES}) -> (Tensor, Tensor)")
for _name in ("backward", "backward_one_pass", "backward_gluon"):
    _sums = "" if _name == "backward" else "Tensor(b!) dq_sum, "
    _library.define(
        f"flash_attention_{_name}(Tensor d_out, Tensor? d_logsumexp, Tensor q, Tensor k, Tensor v, "
        f"Tensor out, Tensor logsumexp, Tensor(a!) delta, {_sums}{_RULES}) -> (Tensor, Tensor, Tensor)"
    )
flash_attention_op = torch.ops.perflab.flash_attention.default
flash_attention_tma_op = torch.ops.perflab.flash_attention_tma.default
flash_attention_one_pass_op = torch.ops.perflab.flash_attention_one_pass.default
flash_attention_gluon_op = torch.ops.perflab.flash_attention_gluon.default
flash_attention_backward_op = torch.ops.perflab.flash_attention_backward.default
flash_attention_backward_one_pass_op = torch.ops.perflab.flash_attention_backward_one_pass.default
flash_attention_backward_gluon_op = torch.ops.perflab.flash_attention_backward_gluon.default


def _forward(run: Callable[..., None], name: str) -> Callable[..., tuple[Tensor, Tensor]]:
    def forward(
        q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None, lower: int | None, upper: int | None,
        sinks: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        require_runnable(
            q.device, name=f"attention impl {name!r}", instead="impl='tiled', the same algorithm in PyTorch"
        )  # fmt: skip
        results = _empty_results(q, k, v)
        run(*_with_heads(q, q, k, v, *results), Scoring(scale, softcap, lower, upper, sinks))
        return results

    return forward


def _empty_results(q: Tensor, k: Tensor, v: Tensor, *rules: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)


def _backward(
    d_out: Tensor,
    d_logsumexp: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    delta: Tensor,
    *rules: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    results = _empty_gradients(d_out, d_logsumexp, q, k, v)
    scoring = Scoring(*rules)
    d_ends = None if d_logsumexp is None else _with_heads(q, d_logsumexp.contiguous())[0]
    dq, dk, dv, d_out, k, v, out, ends, delta, q = _with_heads(q, *results, d_out, k, v, out, logsumexp, delta, q)
    run_prepared(delta_launch, out, d_out, d_ends, delta)
    run_dk_dv(q, k, v, d_out, ends, delta, dk, dv, scoring)
    run_dq(q, k, v, d_out, ends, delta, dq, scoring)
    return results


def _backward_one_pass(
    d_out: Tensor,
    d_logsumexp: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    delta: Tensor,
    dq_sum: Tensor,
    *rules: Any,
    run: Callable[..., None] = run_one_pass,
) -> tuple[Tensor, Tensor, Tensor]:
    results = _empty_gradients(d_out, d_logsumexp, q, k, v)
    scoring = Scoring(*rules)
    tiles = one_pass_tiles(q, k, scoring, architecture_of(q.device))
    if tiles is None:
        # A graph that torch.compile kept on disk may come from another version's table of tiles.
        return _backward(d_out, d_logsumexp, q, k, v, out, logsumexp, delta, *rules)
    d_ends = None if d_logsumexp is None else _with_heads(q, d_logsumexp.contiguous())[0]
    dq, dk, dv, d_out, k, v, out, ends, delta, dq_sum, q = _with_heads(
        q, *results, d_out, k, v, out, logsumexp, delta, dq_sum, q
    )
    run_prepared(delta_launch, out, d_out, d_ends, delta)
    run(q, k, v, d_out, ends, delta, dk, dv, dq_sum, scoring, tiles)
    torch.mul(dq_sum, scoring.scale, out=dq)
    return results


def _backward_gluon(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _backward_one_pass(*given, run=run_one_pass_in_gluon)


def _in_two_passes(d_out: Tensor, d_logsumexp: Tensor | None, *kept: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients from what the forward kept: q, k, v, out, logsumexp, and the rules."""
    delta = torch.empty_like(kept[4])
    return flash_attention_backward_op(d_out, d_logsumexp, *kept[:5], delta, *kept[5:])  # type: ignore[no-any-return]


def _in_one_pass(
    d_out: Tensor,
    d_logsumexp: Tensor | None,
    *kept: Any,
    op: Callable[..., Any] = flash_attention_backward_one_pass_op,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients in one pass where it has tiles, and in two elsewhere or where the same bits are asked for."""
    q, k, _, _, logsumexp, *rules = kept
    if one_pass_tiles(q, k, Scoring(*rules), architecture_of(q.device)) is None or _must_repeat_bits():
        return _in_two_passes(d_out, d_logsumexp, *kept)
    sums = torch.empty_like(logsumexp), q.new_zeros(q.shape, dtype=torch.float32)
    return op(d_out, d_logsumexp, *kept[:5], *sums, *rules)  # type: ignore[no-any-return]


def _in_gluon(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _in_one_pass(*given, op=flash_attention_backward_gluon_op)


def _must_repeat_bits() -> bool:
    """Whether deterministic algorithms are asked for; with warn_only, as in PyTorch's attention, warn and say no."""
    if not torch.are_deterministic_algorithms_enabled():
        return False
    if torch.is_deterministic_algorithms_warn_only_enabled():
        warnings.warn(
            "attention impls 'triton-one-pass' and 'triton-gluon' add up the gradient of q in an order that differs "
            "from run to run; torch.use_deterministic_algorithms(True, warn_only=False) selects the backward in two "
            "passes",
            stacklevel=2,
        )
        return False
    return True


def _empty_gradients(
    d_out: Tensor, d_logsumexp: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _with_heads(q: Tensor, *tensors: Tensor) -> list[Tensor]:
    """The tensors as they are if q is (B, H, N, D); with one head between if it is (B, N, D)."""
    return [x if q.dim() == 4 else x.unsqueeze(1) for x in tensors]


def _under_autocast(op: Callable[..., Any], device_type: str) -> Callable[..., tuple[Tensor, Tensor]]:
    def cast_and_call(q: Tensor, k: Tensor, v: Tensor, *rules: Any) -> tuple[Tensor, Tensor]:
        dtype = torch.get_autocast_dtype(device_type)
        with torch.autocast(device_type, enabled=False):
            return op(q.to(dtype), k.to(dtype), v.to(dtype), *rules)  # type: ignore[no-any-return]

    return cast_and_call


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *ctx.rules = inputs
    ctx.save_for_backward(q, k, v, *output)
    # Without a gradient of the log-sum-exp, which is the rule, none is made up out of zeros.
    ctx.set_materialize_grads(False)


def _derivative(backward: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> Callable[..., tuple[Tensor | None, ...]]:
    def differentiate(ctx: Any, d_out: Tensor | None, d_logsumexp: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        q, k, v, out, logsumexp = ctx.saved_tensors  # read once: activation checkpointing recomputes them for it
        if d_out is None:
            d_out = torch.zeros_like(out)
        dq, dk, dv = backward(d_out, d_logsumexp, q, k, v, out, logsumexp, *ctx.rules)
        return dq, dk, dv, None, None, None, None, None

    return differentiate


def _forward_flops(
    q_shape: Sequence[int], k_shape: Sequence[int], v_shape: Sequence[int], *rules: Any, **others: Any
) -> int:
    """Two products of 2 D operations for each pair of query and key in the band; PyTorch's own count ignores masks."""
    lower, upper, sinks = rules[2:5]
    num_queries, num_keys, head_dim = q_shape[-2], k_shape[-2], q_shape[-1]
    return 4 * math.prod(q_shape[:-2]) * pairs_in_band(num_queries, num_keys, lower, upper, sinks) * head_dim


def _backward_flops(d_out_shape: Sequence[int], d_logsumexp_shape: Any, *rest: Any, **others: Any) -> int:
    """Five products, where the forward has two: the scores again, dv, dp, dq and dk."""
    return _forward_flops(*rest[:3], *rest[-5:]) * 5 // 2


for _op, _name, _run, _gradients in (
    (flash_attention_op, "triton", run_forward, _in_two_passes),
    (flash_attention_tma_op, "triton-tma", run_forward_tma, _in_two_passes),
    (flash_attention_one_pass_op, "triton-one-pass", run_forward, _in_one_pass),
    (flash_attention_gluon_op, "triton-gluon", run_forward, _in_gluon),
):
    for _device in ("CPU", "CUDA"):
        _library.impl(_op, _forward(_run, _name), _device)
        _library.impl(_op, _under_autocast(_op, _device.lower()), f"Autocast{_device}")
    torch.library.register_fake(_op, _empty_results, lib=_library)
    torch.library.register_autograd(_op, _derivative(_gradients), setup_context=_keep_for_backward, lib=_library)
    register_flop_formula(_op.overloadpacket)(_forward_flops)
for _op, _implementation in (
    (flash_attention_backward_op, _backward),
    (flash_attention_backward_one_pass_op, _backward_one_pass),
    (flash_attention_backward_gluon_op, _backward_gluon),
):
    for _device in ("CPU", "CUDA"):
        _library.impl(_op, _implementation, _device)
    torch.library.register_fake(_op, _empty_gradients, lib=_library)
    register_flop_formula(_op.overloadpacket)(_backward_flops)
