"""The one call that reaches every form of the selective scan. The form that is asked for runs, or it raises.

Shapes: x, dt, z, y (B, T, E); a (E, N); b, c (B, T, N); d (E,); state (B, E, N); starts (B, T) of bool.

    h_t = exp(dt_t a) h_{t-1} + dt_t b_t x_t        y_t = (c_t h_t + d x_t) silu(z_t)
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from perflab.lab.attention.inputs import accumulation_dtype
from perflab.lab.scan.chunked import chunked_selective_scan
from perflab.lab.scan.definition import reference_selective_scan

FORMS = ("definition", "chunked", "triton")
"""The definition in float64, cast to the inputs' dtype; plain PyTorch by chunks; Triton kernels."""
_DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "x": ("B", "T", "E"), "dt": ("B", "T", "E"), "a": ("E", "N"), "b": ("B", "T", "N"), "c": ("B", "T", "N"),
    "d": ("E",), "z": ("B", "T", "E"), "state": ("B", "E", "N"), "starts": ("B", "T"),
}  # fmt: skip
_OF_X = ("x", "b", "c", "z")


def selective_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None = None,
    *,
    z: Tensor | None = None,
    state: Tensor | None = None,
    starts: Tensor | None = None,
    form: str = "chunked",
) -> tuple[Tensor, Tensor]:
    """y (B, T, E) in the dtype of x, and the state (B, E, N) behind the last position, in float32 at least.

    x, dt        (B, T, E): inputs, and step sizes, which are not below zero
    a            (E, N), not above zero: states then decay. Neither sign is checked, which would wait for the device
    b, c         (B, T, N): how inputs enter the state, and how it is read
    d            (E,): what of x is added to y (default: nothing)
    z            (B, T, E): y is multiplied by silu(z) (default: no gate)
    state        (B, E, N) ahead of the first position (default: zeros)
    starts       (B, T) of bool: sequences that begin here see nothing of what stands before, nor of `state`
    form         one of FORMS

    x, b, c and z share one floating dtype; dt, a, d and state are of that or of float32. All on one device, in any
    strides. Differentiable with respect to all floating inputs, through y and the state; the Triton form once.

    Raises ValueError for an unknown form, and for shapes and devices that do not fit; TypeError for dtypes;
    RuntimeError where Triton cannot run on the device; ImportError where it is missing.
    """
    given = {"x": x, "dt": dt, "a": a, "b": b, "c": c, "d": d, "z": z, "state": state, "starts": starts}
    _check({name: tensor for name, tensor in given.items() if tensor is not None})
    if form == "definition":
        y, behind = reference_selective_scan(x, dt, a, b, c, d, z=z, state=state, starts=starts)
        return y.to(x.dtype), behind.to(accumulation_dtype(x.dtype))
    if form == "chunked":
        return chunked_selective_scan(x, dt, a, b, c, d, z=z, state=state, starts=starts)
    if form == "triton":
        found: tuple[Tensor, Tensor] = _triton().triton_selective_scan(x, dt, a, b, c, d, z, state, starts)
        return found
    raise ValueError(f"unknown form {form!r} of the selective scan; choose one of: {', '.join(FORMS)}")


def _triton() -> Any:
    try:
        from perflab.lab.scan import triton_scan
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "triton":
            raise
        raise ImportError(
            "the selective scan in Triton needs Triton, which is not installed: install the package 'triton' (Linux), "
            "or choose form='chunked', the same recurrence in PyTorch"
        ) from error
    return triton_scan


def _check(tensors: Mapping[str, Tensor]) -> None:
    sizes: dict[str, tuple[int, str]] = {}
    for name, tensor in tensors.items():
        wanted = _DIMENSIONS[name]
        if tensor.dim() != len(wanted) or 0 in tensor.shape:
            raise ValueError(
                f"selective_scan wants {name} ({', '.join(wanted)}), each 1 at least; got {tuple(tensor.shape)}. "
                f"Reshape it"
            )
        for letter, size in zip(wanted, tensor.shape, strict=True):
            first, whose = sizes.setdefault(letter, (size, name))
            if size != first:
                raise ValueError(
                    f"selective_scan wants one {letter} in all its tensors; got {letter}={first} in {whose} and "
                    f"{size} in {name} {tuple(tensor.shape)}. Transpose or slice one of them"
                )
    dtype = tensors["x"].dtype
    if not dtype.is_floating_point:
        raise TypeError(f"selective_scan wants x of a floating dtype; got {dtype}. Cast it with .to(torch.float32)")
    for name, tensor in tensors.items():
        if name == "starts":
            allowed: tuple[torch.dtype, ...] = (torch.bool,)
        else:
            allowed = (dtype,) if name in _OF_X else (dtype, accumulation_dtype(dtype))
        if tensor.dtype not in allowed:
            choices = " or ".join(dict.fromkeys(str(one).removeprefix("torch.") for one in allowed))
            raise TypeError(
                f"selective_scan wants {name} in {choices} beside x in {str(dtype).removeprefix('torch.')}; "
                f"got {str(tensor.dtype).removeprefix('torch.')}. Cast it with .to(dtype)"
            )
        if tensor.device != tensors["x"].device:
            raise ValueError(
                f"selective_scan wants all tensors on one device; got x on {tensors['x'].device} and {name} on "
                f"{tensor.device}. Move it with .to(device)"
            )
