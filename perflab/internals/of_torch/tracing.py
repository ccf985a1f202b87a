"""The position of autograd while a run is traced, parts of tensors, storages and modules; how fake tensors are made.

Functions that are called at each operator look a name up when it is used: a fraction of a microsecond.
"""

from __future__ import annotations

import importlib
import sys
import weakref
from typing import TYPE_CHECKING, Any

from perflab.internals.lookup import TORCH, attribute, lookup, missing

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensorMode

MODE_LOG = "torch._subclasses.fake_tensor"
"""Name of the mode's logger; if PyTorch renames the logger, a line too many is printed, and no number is wrong."""

_SWAP = "let a module of fake tensors change its dtype"


def is_fake(value: object) -> bool:
    """Whether a value is a fake tensor; nothing is loaded to tell. ``torch.compiler`` has no public test for that."""
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(value, attribute(TORCH, module, "FakeTensor", "leave fake tensors out"))


def refusing_addresses() -> list[tuple[Any, str, Any]]:
    """Return (owner, name, value) to set so that ``data_ptr()`` of a fake tensor raises, since null pointers crash.

    No such setting is public.
    """
    module, setting = "torch._functorch.config", "fake_tensor_allow_unsafe_data_ptr_access"
    lookup(TORCH, f"{module}:{setting}", "refuse addresses of fake tensors, with which a kernel would crash")
    return [(importlib.import_module(module), setting, False)]


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


def decomposition_of(operator: Any, to: str) -> Any:
    """Return the function of ``torch._decomp`` by which fake tensors run an operator.

    Raises:
        InternalsError: there is none.
    """
    table: dict[Any, Any] = lookup(TORCH, "torch._decomp:decomposition_table", to)
    if operator not in table:
        raise missing(TORCH, f"{operator} in torch._decomp.decomposition_table", to)
    return table[operator]


def forget_shapes() -> None:
    """Forget the shapes that fake tensors computed, which are cached by shape and dtype, whatever rule gave them."""
    lookup(TORCH, "torch._subclasses.fake_tensor:FakeTensorMode.cache_clear", "forget shapes of other rules")()


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


_SPARSE_PARTS = {
    "torch.sparse_coo": ("_values", "_indices"),  # the public methods want a coalesced tensor, which is computed anew
    **dict.fromkeys(("torch.sparse_csr", "torch.sparse_bsr"), ("values", "crow_indices", "col_indices")),
    **dict.fromkeys(("torch.sparse_csc", "torch.sparse_bsc"), ("values", "ccol_indices", "row_indices")),
}
_ORDER = "tell which forward a backward belongs to"


def is_in_backward() -> bool:
    """Whether this thread runs a backward. ``torch.autograd.graph`` has hooks for single nodes, not for all nodes."""
    import torch

    return bool(attribute(TORCH, torch._C, "_current_graph_task_id", "tell whether a backward runs")() != -1)


def current_node() -> Any:
    """Return the backward node that runs, or None. ``Tensor.grad_fn`` is a node, but not the one that runs."""
    import torch

    return attribute(TORCH, torch._C, "_current_autograd_node", "tell which layer a backward is in")()


def sequence_number(node: Any) -> int:
    """Return the number that autograd gave a node, counted up with each node; a node's public ``metadata`` is empty."""
    number: int = attribute(TORCH, node, "_sequence_nr", _ORDER)()
    return number


def last_sequence_number() -> int:
    """Return the number of the node that was made last. The profiler has the number too, but only after the run."""
    import torch

    return int(attribute(TORCH, torch.autograd, "_get_sequence_nr", _ORDER)()) - 1


def storage_key(storage: torch.UntypedStorage) -> int:
    """Return a storage's identity, which ``copy.deepcopy`` uses too.

    ``data_ptr()`` is public, but fake tensors refuse it; the Python object is another one each time.
    """
    return int(attribute(TORCH, storage, "_cdata", "tell storages apart"))


def is_view(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a view that autograd knows of. ``Tensor._base`` tells this too, but is private as well."""
    return bool(attribute(TORCH, tensor, "_is_view", "keep casts of whole parameters, as autocast does")())


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor, or one that shares its memory, was written to; 0 for a tensor that keeps no count."""
    return 0 if tensor.is_inference() else int(attribute(TORCH, tensor, "_version", "know what was changed"))


def parts_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the strided tensors that have the memory of a sparse or nested tensor, or of a subclass that wraps others.

    A plain tensor is its own part. An opaque tensor (MKL-DNN's) has no parts: PyTorch tells neither its address nor its
    size.
    """
    import torch

    flatten: Any = getattr(tensor, "__tensor_flatten__", None)  # the protocol of subclasses for torch.compile
    if flatten is not None:
        inner = [getattr(tensor, name) for name in flatten()[0]]
    elif tensor.is_nested:
        inner = [tensor.values()]
    elif tensor.layout is torch.strided:  # a subclass may wrap other tensors, and not tell which
        is_plain = type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__ or is_fake(tensor)
        inner = [] if is_plain else [one for one in vars(tensor).values() if isinstance(one, torch.Tensor)]
        yield from () if inner else (tensor,)
    else:
        names = _SPARSE_PARTS.get(str(tensor.layout), ())
        inner = [attribute(TORCH, tensor, name, "look into a sparse tensor")() for name in names]
    for one in inner:
        if isinstance(one, torch.Tensor):
            yield from parts_of(one)


def children_of(module: nn.Module) -> dict[str, Any]:
    """Return a module's children by key, including None. ``named_children()`` leaves out None and repeated children."""
    children: dict[str, Any] = attribute(TORCH, module, "_modules", "count a model's layers")
    return children


def set_children(module: nn.Module, children: dict[str, Any]) -> None:
    """Give a module other children, and change nothing else.

    The public ``del`` on a ``ModuleList`` renumbers the remaining children.
    """
    children_of(module)
    module._modules = children


PARTS_OF_A_MODULE = frozenset(("_modules", "_parameters"))
"""Keys of a module's ``vars()`` with its parts, which are compared, whoever set them. Public views leave out None."""


def foreach_types() -> list[list[type]]:
    """Return each list by which PyTorch decides whether a tensor's type may go into ``_foreach_`` operators.

    ``foreach=True`` is public, but belongs to the author of the training step; its default depends on the type of the
    parameters and on their device.
    """
    owners = ("torch.utils._foreach_utils", "torch.optim.optimizer")
    return [lookup(TORCH, f"{one}:_foreach_supported_types", "choose optimizers as on CUDA") for one in owners]
