"""How fake tensors are made: PyTorch's tables, settings and memories around ``FakeTensorMode``."""

from __future__ import annotations

import importlib
import sys
import weakref
from typing import TYPE_CHECKING, Any

from perflab.internals.lookup import TORCH, attribute, lookup, missing, needs

if TYPE_CHECKING:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

MODE_LOG = "torch._subclasses.fake_tensor"
"""Name of the mode's logger; if PyTorch renames the logger, a line too many is printed, and no number is wrong."""

_SWAP = "let a module of fake tensors change its dtype"


def is_fake(value: object) -> bool:
    """Whether a value is a fake tensor; nothing is loaded to tell. ``torch.compiler`` has no public test for that."""
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(value, attribute(TORCH, module, "FakeTensor", "leave fake tensors out"))


@needs(
    TORCH,
    "torch._functorch.config:fake_tensor_allow_unsafe_data_ptr_access",
    to="refuse addresses of fake tensors, with which a kernel would crash",
)
def refusing_addresses() -> list[tuple[Any, str, Any]]:
    """Return (owner, name, value) to set so that ``data_ptr()`` of a fake tensor raises, since null pointers crash.

    No such setting is public.
    """
    config: Any = importlib.import_module("torch._functorch.config")
    return [(config, "fake_tensor_allow_unsafe_data_ptr_access", False)]


def shape_rule_replaced_in(operator: Any, to: str) -> dict[Any, Any]:
    """Return PyTorch's table of the rules by which fake tensors compute shapes; the table has ``operator``.

    ``torch.library.register_fake`` is public, but for new operators: it refuses operators that have a rule.

    Raises:
        InternalsError: there is no such table, or the operator is not in it.
    """
    table: dict[Any, Any] = lookup(TORCH, "torch._subclasses.fake_impls:op_implementations_dict", to)
    if operator not in table:
        raise missing(TORCH, f"rule for {operator} in torch._subclasses.fake_impls.op_implementations_dict", to)
    return table


@needs(TORCH, "torch._subclasses.fake_tensor:FakeTensorMode.cache_clear", to="forget shapes of other rules")
def forget_shapes() -> None:
    """Forget the shapes that fake tensors computed, which are cached by shape and dtype, whatever rule gave them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    FakeTensorMode.cache_clear()


def forget_real_tensor(mode: FakeTensorMode, tensor: torch.Tensor) -> None:
    """Make a mode forget the fake tensor that it made of a tensor, which it keeps only to save time.

    Swapping refuses tensors to which something holds a weak reference, as the mode does. The only public way is a new
    mode.
    """
    converter = attribute(TORCH, attribute(TORCH, mode, "fake_tensor_converter", _SWAP), "meta_converter", _SWAP)
    made = attribute(TORCH, converter, "tensor_memo", _SWAP)
    described = attribute(TORCH, attribute(TORCH, converter, "describer", _SWAP), "lookup_tensor", _SWAP)
    for reference in weakref.getweakrefs(tensor):
        if isinstance(reference, weakref.KeyedRef) and made.get(reference.key) is tensor:
            del made[reference.key]
    if tensor in described:
        del described[tensor]
