"""Fills what ``torch.empty`` returns with NaN, so that memory that is never written shows.

A kernel that leaves the end of its output unwritten passes a test whenever the allocator hands it memory
that held a right answer a moment ago, which is what allocators do. Here fresh memory holds NaN, or the
largest value of an integer dtype, until it is written.

Autograd passes the mode to the threads that run a backward (it restores the caller's thread-local state in
these threads), so a backward's allocations are poisoned as well. A Triton kernel writes into memory that was
filled before the kernel, in stream order. Not seen: memory that code from torch.compile takes for itself, and
allocations inside the body of PyTorch's own compiled operators.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from perflab.internals.of_torch import OpOverload, TorchDispatchMode
from perflab.internals.of_torch.dispatch import redispatch_to_device

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

aten = torch.ops.aten
_ALLOCATING = frozenset(
    (aten.empty, aten.empty_like, aten.empty_strided, aten.empty_permuted, aten.new_empty, aten.new_empty_strided)
)
_PYTORCH_NAMESPACES = frozenset(("aten", "prim", "prims"))


class PoisonedMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`with PoisonedMemory(): ...`: uninitialised memory holds NaN, True, or the largest integer."""

    # Let operators that take functions (flex_attention, say) pass through instead of being refused.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: otherwise torch.compile would see a mode and quietly run a compiled candidate eagerly."""
        return True

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        if func.namespace not in _PYTORCH_NAMESPACES:
            return self._call_custom_operator(func, args, kwargs)
        if func.overloadpacket is aten.resize_:
            return _resize(func, args, kwargs)
        result = func(*args, **kwargs)
        if func.overloadpacket in _ALLOCATING:
            fill(result)
        return result

    def _call_custom_operator(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a custom operator's body with this mode on, so that its own allocations are poisoned too.

        While a mode handles an operator, the mode is off. Switched on again, the mode would see this operator
        without end; so the operator is entered below the mode, at the kernel of its device.
        """
        devices = [arg.device.type for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
        if not devices:
            return func(*args, **kwargs)
        # The device of the result, even if a scalar of the CPU is among CUDA tensors.
        device = next((device for device in devices if device != "cpu"), "cpu")
        with self:
            return redispatch_to_device(func, device, args, kwargs)


def _resize(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run `tensor.resize_` and fill the elements beyond the tensor's old end, which alone are fresh."""
    old = args[0].numel()
    result = func(*args, **kwargs)
    if result.numel() > old and result.is_contiguous():
        fill(result.view(-1)[old:])
    return result


def fill(tensor: Tensor) -> None:
    """Overwrite a tensor with NaN, True, or the largest integer of its dtype."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(float("nan"))
    elif tensor.dtype == torch.bool:
        tensor.fill_(True)
    elif not tensor.is_quantized:
        tensor.fill_(torch.iinfo(tensor.dtype).max)
