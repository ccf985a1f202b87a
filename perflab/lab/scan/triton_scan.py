"""The selective scan in Triton as PyTorch operators, and its launches as data.

Shapes: as in `triton_scan_kernel`, which says what each kernel does and keeps.

    perflab::selective_scan(x, dt, a, b, c, d, z, state, starts) -> (y, final, kept)
    perflab::selective_scan_backward(dy, d_final, ..., kept) -> (dx, d_dt, d_a, d_b, d_c, d_d, dz, d_state)

An optional tensor that is not there has a gradient of no elements. Inputs are as `selective_scan` checks them: the
operators themselves are not for calling. This module imports Triton.
"""

from collections.abc import Mapping
from typing import Any

import torch
import triton
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from perflab.lab.kernels import operators
from perflab.lab.kernels.inputs import DTYPES
from perflab.lab.kernels.tiles import power_of_two
from perflab.lab.launch import Launch, emulates_bf16, require_runnable
from perflab.lab.scan.triton_scan_kernel import selective_scan_backward_kernel, selective_scan_kernel

# The kept states cost 4 E N / 64 bytes a position: at N = 16 half of what x does in 16 bits.
CHUNK = 64
# One warp with 16 numbers a thread of each matrix (state, decay, their gradients): half a dozen of them are a hundred
# registers. Small, since a program walks along all T positions: the channels have to fill the GPU.
TILE_ELEMENTS = 512

Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""x, dt, a, b, c, d, z, state, starts."""


def blocks(channels: int, states: int) -> tuple[int, int]:
    """BLOCK_E and BLOCK_N: all numbers of state, and as many channels as a warp takes."""
    block_n = power_of_two(states)
    return min(power_of_two(channels), max(1, TILE_ELEMENTS // block_n)), block_n


def scan_launch(inputs: Inputs, y: Tensor, kept: Tensor, final: Tensor) -> Launch:
    """Write y, the states ahead of chunks and the final state, all contiguous."""
    x, _, a, _, _, _, _, state, _ = inputs
    strides = (0, 0, 0) if state is None else state.stride()
    arguments = {
        **_common(inputs),
        "state_ptr": x if state is None else state,
        **dict(zip(("stride_hb", "stride_he", "stride_hn"), strides, strict=True)),
        "y_ptr": y, "kept_ptr": kept, "final_ptr": final, "HAS_STATE": state is not None,
    }  # fmt: skip
    return Launch(selective_scan_kernel, (_programs(x, a),), arguments, x.device, num_warps=1)


def scan_backward_launch(
    inputs: Inputs, kept: Tensor, scratch: Tensor, dy: Tensor, d_final: Tensor | None, gradients: Mapping[str, Tensor]
) -> Launch:
    """Write the gradients, those of a, b, c and d in parts; all are contiguous."""
    x, _, a, *_ = inputs
    arguments = {
        **_common(inputs),
        "kept_ptr": kept, "scratch_ptr": scratch, "dy_ptr": dy, "d_final_ptr": kept if d_final is None else d_final,
        **{f"{name}_ptr": tensor for name, tensor in gradients.items()},
        **dict(zip(("stride_gb", "stride_gt", "stride_ge"), dy.stride(), strict=True)),
        "num_batches": x.shape[0], "HAS_D_FINAL": d_final is not None,
    }  # fmt: skip
    return Launch(selective_scan_backward_kernel, (_programs(x, a),), arguments, x.device, num_warps=1)


def kept_shape(x: Tensor, a: Tensor) -> tuple[int, ...]:
    """The states ahead of chunks."""
    return x.shape[0], triton.cdiv(x.shape[1], CHUNK), *a.shape


def scratch_shape(x: Tensor, a: Tensor) -> tuple[int, ...]:
    """The states of one chunk of each program."""
    return _programs(x, a), CHUNK, *blocks(*a.shape)


def part_shapes(x: Tensor, a: Tensor) -> dict[str, tuple[int, ...]]:
    """The parts of sums: d_b and d_c by tiles of channels, d_a and d_d by sequences."""
    rows = triton.cdiv(a.shape[0], blocks(*a.shape)[0]), *x.shape[:2], a.shape[1]
    return {"d_b": rows, "d_c": rows, "d_a": (x.shape[0], *a.shape), "d_d": (x.shape[0], a.shape[0])}


def _programs(x: Tensor, a: Tensor) -> int:
    return x.shape[0] * int(triton.cdiv(a.shape[0], blocks(*a.shape)[0]))


def _common(inputs: Inputs) -> dict[str, Any]:
    """The arguments that both kernels have. Another tensor stands in for one that is missing, and is never read."""
    x, dt, a, b, c, d, z, _, starts = inputs
    block_e, block_n = blocks(*a.shape)
    tensors = {
        "x": (x, "xb xt xe"), "dt": (dt, "tb tt te"), "a": (a, "ae an"), "b": (b, "bb bt bn"), "c": (c, "cb ct cn"),
        "d": (d, "de"), "z": (z, "zb zt ze"), "starts": (starts, "sb st"),
    }  # fmt: skip
    arguments: dict[str, Any] = {}
    for name, (tensor, letters) in tensors.items():
        arguments[f"{name}_ptr"] = x if tensor is None else tensor
        for position, letter in enumerate(letters.split()):
            arguments[f"stride_{letter}"] = 0 if tensor is None else tensor.stride(position)
    return arguments | {
        "length": x.shape[1], "channels": a.shape[0], "states": a.shape[1],
        "HAS_D": d is not None, "HAS_Z": z is not None, "HAS_STARTS": starts is not None,
        "EMULATE_BF16": emulates_bf16(x.dtype), "CHUNK": CHUNK, "BLOCK_E": block_e, "BLOCK_N": block_n,
    }  # fmt: skip


# --- For PyTorch -------------------------------------------------------------------------------------------------


def _empty(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, a = inputs[0], inputs[2]
    final = torch.empty(x.shape[0], *a.shape, dtype=torch.float32, device=x.device)
    kept = torch.empty(kept_shape(x, a), dtype=torch.float32, device=x.device)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), final, kept


def _run(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    require_runnable(inputs[0].device, name="the selective scan in Triton", instead="form='chunked'")
    y, final, kept = _empty(*inputs)
    scan_launch(inputs, y, kept, final)()
    return y, final, kept


def _empty_gradients(dy: Tensor | None, d_final: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(
        torch.empty(() if x is None else x.shape, dtype=rest[0].dtype if x is None else x.dtype, device=rest[0].device)
        for x in rest[:8]
    )


def _run_backward(dy: Tensor | None, d_final: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    inputs: Any = rest[:9]
    x, _, a, b, c, d, _, state, _ = inputs
    dx, d_dt, d_a, d_b, d_c, d_d, dz, d_state = _empty_gradients(dy, d_final, *rest)

    def room(shape: tuple[int, ...]) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=x.device)

    parts = {name: room(shape) for name, shape in part_shapes(x, a).items()}
    first = room((x.shape[0], *a.shape))
    gradients = {"dx": dx, "d_dt": d_dt, "dz": dz, "d_state": first, **parts}
    if dy is None:
        dy = torch.zeros((), dtype=x.dtype, device=x.device).expand(x.shape)
    d_final = None if d_final is None else d_final.contiguous()
    scan_backward_launch(inputs, rest[9], room(scratch_shape(x, a)), dy, d_final, gradients)()
    # In a fixed order: the same bits each time.
    d_a, d_b, d_c = (parts[name].sum(0).to(it.dtype) for name, it in (("d_a", a), ("d_b", b), ("d_c", c)))
    if d is not None:
        d_d = parts["d_d"].sum(0).to(d.dtype)
    if state is not None:
        d_state = first if state.dtype == first.dtype else first.to(state.dtype)
    return dx, d_dt, d_a, d_b, d_c, d_d, dz, d_state


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, output[2])
    # Nobody differentiates the kept states: no zeros are made up for them.
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, dy: Tensor | None, d_final: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    *inputs, kept = ctx.saved_tensors
    found = _backward(dy, d_final, *inputs, kept)
    return *(None if x is None else gradient for x, gradient in zip(inputs[:8], found, strict=True)), None


_INPUTS = "Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor? d, Tensor? z, Tensor? state, Tensor? starts"
_backward = operators.define(
    "selective_scan_backward",
    f"(Tensor? dy, Tensor? d_final, {_INPUTS}, Tensor kept) -> ({', '.join(['Tensor'] * 8)})",
    run=_run_backward,
    fake=_empty_gradients,
)
_scan = operators.define(
    "selective_scan", f"({_INPUTS}) -> (Tensor, Tensor, Tensor)", run=_run, fake=_empty, save=_save, gradient=_gradient
)


@register_flop_formula(torch.ops.perflab.selective_scan)
def _flops(x_shape: Any, dt_shape: Any, a_shape: Any, *_: Any, **__: Any) -> int:
    """6 B T E N: of each number of state the exponent, decay, input and reading; no exponentials are counted."""
    return 6 * int(torch.Size(x_shape).numel()) * int(a_shape[1])


@register_flop_formula(torch.ops.perflab.selective_scan_backward)
def _backward_flops(
    dy_shape: Any, d_final_shape: Any, x_shape: Any, dt_shape: Any, a_shape: Any, *_: Any, **__: Any
) -> int:
    """18 B T E N: the states again, and twice as much for the gradients as the forward took."""
    return 3 * _flops(x_shape, dt_shape, a_shape)


def triton_selective_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    z: Tensor | None,
    state: Tensor | None,
    starts: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """y in the dtype of x and the final state in float32, of inputs as `selective_scan` checks them.

    TypeError for float64, which the kernels do not have.
    """
    if x.dtype not in DTYPES:
        raise TypeError(
            f"the selective scan in Triton takes float32, bfloat16 and float16; got x in "
            f"{str(x.dtype).removeprefix('torch.')}. Choose form='chunked', or cast with .to(torch.float32)"
        )
    flags = None if starts is None else starts.view(torch.uint8)
    y, final, _ = _scan(x, dt, a, b, c, d, z, state, flags)
    return y, final
