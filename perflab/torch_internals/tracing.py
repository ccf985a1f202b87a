"""Where autograd is while a run is traced, and what tensors, storages and modules are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perflab.internals import TORCH, attribute, lookup, needs

if TYPE_CHECKING:
    import torch
    from torch import nn

_ORDER = "tell which forward a backward belongs to"


@needs(TORCH, "torch:_C._current_graph_task_id", to="tell whether a backward runs")
def is_in_backward() -> bool:
    """Whether this thread runs a backward. ``torch.autograd.graph`` has hooks for single nodes, not for all."""
    import torch

    return bool(torch._C._current_graph_task_id() != -1)


@needs(TORCH, "torch:_C._current_autograd_node", to="tell which layer a backward is in")
def current_node() -> Any:
    """The backward node that runs, or None. ``Tensor.grad_fn`` gives a node, but not which one runs."""
    import torch

    return torch._C._current_autograd_node()


def sequence_number(node: Any) -> int:
    """The number that autograd gave a node, counted up with each; its public ``metadata`` is empty."""
    number: int = attribute(TORCH, node, "_sequence_nr", _ORDER)()
    return number


@needs(TORCH, "torch.autograd:_get_sequence_nr", to=_ORDER)
def last_sequence_number() -> int:
    """The number of the node that was made last. The profiler has it too, when all is over."""
    import torch

    return int(torch.autograd._get_sequence_nr()) - 1  # type: ignore[attr-defined]


@needs(TORCH, "torch:UntypedStorage._cdata", to="tell storages apart")
def storage_key(storage: torch.UntypedStorage) -> int:
    """A storage's identity, by which ``copy.deepcopy`` goes too.

    ``data_ptr()`` is public, and refused by fake tensors; the Python object is another one each time.
    """
    return int(storage._cdata)


@needs(TORCH, "torch:Tensor._is_view", to="keep casts of whole parameters, as autocast does")
def is_view(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a view that autograd knows of. ``Tensor._base`` is the same, private alike."""
    return tensor._is_view()


@needs(TORCH, "torch:Tensor._values", to="look for NaN in a sparse result")
def sparse_values(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a sparse COO tensor; the public ``values()`` wants it coalesced, which computes another."""
    values: torch.Tensor = tensor._values()
    return values


def children_of(module: nn.Module) -> dict[str, Any]:
    """A module's children by key, with those that are None. ``named_children()`` leaves these and repeated ones out."""
    children: dict[str, Any] = attribute(TORCH, module, "_modules", "count a model's layers")
    return children


def set_children(module: nn.Module, children: dict[str, Any]) -> None:
    """Give a module other children, and nothing else. The public ``del`` on a ``ModuleList`` renumbers what is left."""
    children_of(module)
    module._modules = children


PARTS_OF_A_MODULE = frozenset(("_modules", "_parameters"))
"""Of a module's ``vars()``, what it is made of: compared, whoever has set it. Public views leave out what is None."""


def foreach_types() -> list[list[type]]:
    """Each list that PyTorch asks whether a tensor's type may go into ``_foreach_`` operators.

    ``foreach=True`` is public, but belongs to the one who writes the training step; what it is by default depends on
    the type of the parameters and on their device.
    """
    owners = ("torch.utils._foreach_utils", "torch.optim.optimizer")
    return [lookup(TORCH, f"{one}:_foreach_supported_types", "choose optimizers as on CUDA") for one in owners]
