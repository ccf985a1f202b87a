"""How fake tensors are made: PyTorch's tables, settings and memories around ``FakeTensorMode``."""

from __future__ import annotations

import importlib
import sys
import weakref
from typing import TYPE_CHECKING, Any

from perflab.internals import TORCH, attribute, lookup, missing, needs

if TYPE_CHECKING:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

MODE_LOG = "torch._subclasses.fake_tensor"
"""Where the mode logs; a logger that does not exist any more leaves a line too many, and no number wrong."""

_SWAP = "let a module of fake tensors change its dtype"


def is_fake(value: object) -> bool:
    """Whether it is a fake tensor; nothing is loaded to tell. ``torch.compiler`` has no public test of it."""
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(value, attribute(TORCH, module, "FakeTensor", "leave fake tensors out"))


@needs(
    TORCH,
    "torch._functorch.config:fake_tensor_allow_unsafe_data_ptr_access",
    to="refuse addresses of fake tensors, with which a kernel would crash",
)
def refusing_addresses() -> list[tuple[Any, str, Any]]:
    """What to replace so that ``data_ptr()`` of a fake tensor raises: null pointers crash. No setting is public."""
    config: Any = importlib.import_module("torch._functorch.config")
    return [(config, "fake_tensor_allow_unsafe_data_ptr_access", False)]


def shape_rule_replaced_in(operator: Any, to: str) -> dict[Any, Any]:
    """PyTorch's table of how fake tensors compute an operator's shapes, which has this operator.

    ``torch.library.register_fake`` is public, and for one's own operators: it refuses those that have a rule.

    Raises:
        InternalsError: there is no such table, or the operator is not in it.
    """
    table: dict[Any, Any] = lookup(TORCH, "torch._subclasses.fake_impls:op_implementations_dict", to)
    if operator not in table:
        raise missing(TORCH, f"rule for {operator} in torch._subclasses.fake_impls.op_implementations_dict", to)
    return table


@needs(TORCH, "torch._subclasses.fake_tensor:FakeTensorMode.cache_clear", to="forget shapes of other rules")
def forget_shapes() -> None:
    """Forget what fake tensors computed: it is remembered by shape and dtype, whatever rule it came from."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    FakeTensorMode.cache_clear()


def forget_real_tensor(mode: FakeTensorMode, tensor: torch.Tensor) -> None:
    """Have a mode forget what it made of a tensor; that is only there to save time.

    Swapping refuses tensors that something holds a weak reference to, as the mode does. Public is a new mode alone.
    """
    converter = attribute(TORCH, attribute(TORCH, mode, "fake_tensor_converter", _SWAP), "meta_converter", _SWAP)
    made = attribute(TORCH, converter, "tensor_memo", _SWAP)
    described = attribute(TORCH, attribute(TORCH, converter, "describer", _SWAP), "lookup_tensor", _SWAP)
    for reference in weakref.getweakrefs(tensor):
        if isinstance(reference, weakref.KeyedRef) and made.get(reference.key) is tensor:
            del made[reference.key]
    if tensor in described:
        del described[tensor]
