"""Weight-only quantisation: linear layers and experts with int8 or int4 weights and scales, and products in x's dtype.

Shapes
    x, y               (..., d_in), (..., d_out)
    W, Q               (d_out, d_in), the weight as it was and as it is read
    scales             (d_out, d_in / group) float32; with 8 bits a row is one group
    weight             int8 (d_out, d_in); with 4 bits uint8 (d_out, d_in / 2), two numbers in a byte

    scale = max |W over a group| / most,    q = round(W / scale),    Q = scale q,    most = 127 or 7
    y = x Q^T + bias

Symmetric, round to nearest: |W - Q| <= scale / 2, so |x W^T - x Q^T|_n <= sum_j |x_j| scale_nj / 2 in exact arithmetic;
`error_bound` gives that. Dettmers et al. (2022), "LLM.int8()", section 2.1; groups as Frantar et al. (2023), "GPTQ",
section 4. Nothing here is differentiable: it is for generating.
"""

import difflib
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perflab.lab.experts.mixture import Experts, feed_forward_of_experts

MOST = {8: 127, 4: 7}
"""The largest number by bits; the smallest is its negative."""
GROUP_SIZES = (32, 64, 128, 256)
"""Group sizes of 4 bits: powers of two, as a kernel's tiles are; half a group is at least a tensor core's depth, 16."""
_Model = TypeVar("_Model", bound=nn.Module)
PRODUCTS = ("torch", "triton")
"""Dequantise, then multiply; or one kernel that reads the packed weights."""


class QuantisedLinear(nn.Module):
    """A linear layer with int8 or int4 weights; see the module. Made by `QuantisedLinear.of(linear)`.

    `scales` stay float32 wherever the module is moved: rounded to 16 bits they would no longer bound the error.
    """

    weight: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, scales: Tensor, bias: Tensor | None, bits: int, product: str) -> None:
        super().__init__()
        self.bits, self.product = bits, product
        self.d_out, self.d_in = weight.shape[0], weight.shape[1] * 8 // bits
        self.group_size = self.d_in // scales.shape[1]
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales)
        self.register_buffer("bias", bias)

    @classmethod
    def of(
        cls, linear: nn.Linear, *, bits: int = 8, group_size: int = 128, product: str = "torch"
    ) -> "QuantisedLinear":
        """The layer with its weight quantised; arguments and errors as `quantise` has them."""
        check_quantisation(linear.weight, bits, group_size, product)
        weight, scales = pack(linear.weight.detach(), bits, group_size)
        bias = None if linear.bias is None else linear.bias.detach().clone()
        return cls(weight, scales, bias, bits, product)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., d_in), float32, bfloat16 or float16 -> (..., d_out), the same dtype; under autocast, its dtype."""
        device_type = x.device.type
        if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
            x = x.to(torch.get_autocast_dtype(device_type))
        if self.product == "torch":
            y = F.linear(x, self.dequantised(x.dtype))
        else:
            y = _triton_product()(x, self.weight, self.scales, self.bits)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def dequantised(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Q (d_out, d_in), rounded to `dtype`."""
        return unpack(self.weight, self.scales, self.bits).to(dtype)

    def error_bound(self, x: Tensor) -> Tensor:
        """Return a bound of |x Q^T - x W^T| in exact arithmetic: sum_j |x_j| scale_nj / 2, (..., d_out) in float64."""
        return x.double().abs() @ (self.scales.double() / 2).repeat_interleave(self.group_size, dim=1).mT

    def extra_repr(self) -> str:
        """Return the layer's settings as `print(model)` shows them."""
        groups = "" if self.bits == 8 else f", group_size={self.group_size}"
        return f"{self.d_in} -> {self.d_out}, bits={self.bits}{groups}, product={self.product!r}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "QuantisedLinear":
        scales = self.scales
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.scales = scales.to(self.scales.device)
        return self


class QuantisedExperts(nn.Module):
    """The experts of a mixture with int8 or int4 matrices: `QuantisedLinear` layers of E d_out outputs, one a matrix.

    A product first unpacks the matrices of all experts into x's dtype, whichever of them have rows.
    """

    def __init__(self, experts: Experts, bits: int, group_size: int) -> None:
        super().__init__()
        self.product = experts.product
        for name, weight in matrices_of(experts).items():
            rows = weight.detach().flatten(0, 1)
            self.add_module(name, QuantisedLinear(*pack(rows, bits, group_size), None, bits, "torch"))

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """(R, d) -> (R, d), as `Experts` does; rows behind `ends[-1]` are undefined."""
        gate, up, down = (
            layer.dequantised(rows.dtype).view(len(ends), -1, layer.d_in).mT
            for layer in self.children()
            if isinstance(layer, QuantisedLinear)
        )
        return feed_forward_of_experts(rows, gate, up, down, ends, self.product)


def matrices_of(layer: nn.Linear | Experts) -> dict[str, Tensor]:
    """The layer's matrices by name, (d_out, d_in) each; of E experts (E, d_out, d_in)."""
    if isinstance(layer, nn.Linear):
        return {"weight": layer.weight}
    return {"gate": layer.gate.mT, "up": layer.up.mT, "down": layer.down.mT}


def quantise(
    model: _Model, *, bits: int = 8, group_size: int = 128, product: str = "torch", skip: Collection[str] = ()
) -> _Model:
    """Replace every `nn.Linear` and every mixture's `Experts`, in place, by quantised ones; returns the model.

    bits        8: one scale a row; 4: one for each `group_size` inputs of a row
    group_size  one of GROUP_SIZES that divides every d_in; with 8 bits it says nothing
    product     "torch" dequantises, then multiplies; "triton" is a kernel that reads the packed weights, of one matrix
                at a time: experts have none, and stay whole only if `skip` names them
    skip        layers that stay, by their qualified names: "head", say

    Embeddings stay, and so does a head that is tied to one. Nothing is replaced if any layer cannot be. Raises
    ValueError for bits, groups, products and names that are none, and a model that is one such layer itself; TypeError
    for weights that are not float32, bfloat16 or float16.
    """
    if isinstance(model, nn.Linear | Experts):
        remedy = "QuantisedLinear.of(model)" if isinstance(model, nn.Linear) else "the layer that holds them"
        raise ValueError(f"the model is one {type(model).__name__}, which cannot be replaced in place; take {remedy}")
    named = dict(model.named_modules(remove_duplicate=False))
    found = {name: module for name, module in named.items() if isinstance(module, nn.Linear | Experts)}
    shared = {id(p) for m in set(named.values()) - set(found.values()) for p in m.parameters(recurse=False)}
    for name in skip:
        if name not in found:
            near = difflib.get_close_matches(name, found, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; its layers are {', '.join(found) or 'none'}"
            raise ValueError(f"skip={name!r} is no linear layer of the model{hint}")
    chosen = {
        name: module
        for name, module in found.items()
        if name not in skip and shared.isdisjoint(map(id, module.parameters(recurse=False)))
    }
    for name, module in chosen.items():
        for weight in matrices_of(module).values():
            check_quantisation(weight, bits, group_size, product, name)
    if product == "triton" and (of_experts := [name for name, m in chosen.items() if isinstance(m, Experts)]):
        raise ValueError(
            f"product='triton' has no kernel for experts ({', '.join(of_experts)}); give product='torch', or "
            f"skip={tuple(of_experts)}"
        )
    made: dict[nn.Module, nn.Module] = {}  # a layer that has two names stays one
    for name, module in chosen.items():
        parent, _, last = name.rpartition(".")
        if module not in made:
            made[module] = (
                QuantisedLinear.of(module, bits=bits, group_size=group_size, product=product)
                if isinstance(module, nn.Linear)
                else QuantisedExperts(module, bits, group_size)
            ).train(module.training)
        setattr(model.get_submodule(parent), last, made[module])
    return model


def check_quantisation(weight: Tensor, bits: int, group_size: int, product: str, name: str = "") -> None:
    """Refuse a weight (..., d_out, d_in) that cannot be packed: ValueError by value or shape, TypeError by dtype."""
    which = f"layer {name!r}" if name else "the layer"
    if bits not in MOST:
        raise ValueError(f"bits={bits!r}: wanted one of {', '.join(map(str, MOST))}")
    if product not in PRODUCTS:
        raise ValueError(f"product={product!r}: wanted one of {', '.join(PRODUCTS)}")
    d_in, dtype = weight.shape[-1], weight.dtype
    if bits == 4 and (group_size not in GROUP_SIZES or d_in % group_size):
        fitting = [str(size) for size in GROUP_SIZES if d_in % size == 0]
        remedy = f"give group_size={' or '.join(fitting)}" if fitting else f"bits=8, or skip=({name!r},)"
        raise ValueError(
            f"group_size={group_size!r} does not cut the {d_in} inputs of {which} into groups of "
            f"{', '.join(map(str, GROUP_SIZES))}; {remedy}"
        )
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise TypeError(f"{which} has weights of {dtype}: wanted float32, bfloat16 or float16; cast with .to(dtype)")


def pack(weight: Tensor, bits: int, group_size: int) -> tuple[Tensor, Tensor]:
    """W (d_out, d_in) as the module's weight and scales. A group of zeros has the scale 1.

    With 4 bits byte i of a group holds number i in its low half, number i + group_size / 2 in its high half: a kernel
    then reads x in two runs. In each half there is q + 8.
    """
    d_out, d_in = weight.shape
    groups = weight.float().view(d_out, -1, d_in if bits == 8 else group_size)
    largest = groups.abs().amax(dim=-1)
    # A quotient that underflows is no scale either: its numbers round to zero, within half of the smallest float.
    scales = (largest / MOST[bits]).clamp_min(torch.finfo(torch.float32).tiny)
    scales = torch.where(largest == 0, 1.0, scales)
    numbers = torch.round(groups / scales[..., None]).clamp(-MOST[bits], MOST[bits]).to(torch.int8)
    if bits == 8:
        return numbers.view(d_out, d_in), scales
    low, high = (numbers + 8).to(torch.uint8).chunk(2, dim=-1)
    return (low | high << 4).reshape(d_out, d_in // 2), scales


def unpack(weight: Tensor, scales: Tensor, bits: int) -> Tensor:
    """Q (d_out, d_in) in float32."""
    numbers = weight.view(*scales.shape, -1)
    if bits == 4:
        numbers = torch.cat((numbers & 15, numbers >> 4), dim=-1).to(torch.int8) - 8
    return (numbers.float() * scales[..., None]).flatten(1)


def weight_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers of the model, each once, tied or not; exact."""
    return sum(x.nbytes for x in (*model.parameters(), *model.buffers()))


def layer_bytes(d_in: int, d_out: int, *, bits: int = 8, group_size: int = 128) -> int:
    """Bytes of one quantised layer without a bias: `d_out (d_in bits / 8 + 4 groups)`."""
    return d_out * (d_in * bits // 8 + 4 * (1 if bits == 8 else d_in // group_size))


def _triton_product() -> Any:
    try:
        from perflab.lab.inference.triton_quantised_product import quantised_product
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "triton":
            raise
        raise ImportError(
            "product='triton' needs Triton, which is not installed: install the package 'triton' (Linux), or choose "
            "product='torch', which dequantises first"
        ) from error
    return quantised_product
