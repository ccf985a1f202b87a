"""The cost of one operator call: FLOPs and bytes moved; and calls of autograd that work in place without a trace.

FLOPs are those of ``torch.utils.flop_counter``: matrix products, convolutions and fused attention, where a
multiplication and an addition are one FLOP each, and masks and causality are ignored. Operators with a formula of their
own (``register_flop_formula``) are counted by that formula. All other operators are bound by their bytes and count no
FLOPs. Bytes are those of each operand and result once: an expanded tensor counts as the tensor that it is expanded
from, and a table that rows are taken from as the rows.

Autograd makes a new tensor under a dispatch mode in some calls, and works in place without the mode. Without a mode, it
adds gradients that meet to the first one, in its memory (``torch/csrc/autograd/input_buffer.cpp``), writes the
gradients of picked rows into zeros, and masks what it has made itself (``FunctionsManual.cpp``). Autograd does none of
them in place if a tensor may be of a subclass, as any tensor may under a mode. So a trace treats such a call as the
in-place one: the result takes over the first operand's memory if that memory is freed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from perflab.internals.of_torch import OpOverload, flop_registry, sdpa_backward_flop, sdpa_flop
from perflab.internals.of_torch.dispatch import schema_of
from perflab.internals.of_torch.tracing import current_node, is_in_backward, sequence_number
from perflab.predicted.trace.trace import Lists

_MATMULS = ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot")
_CONVOLUTIONS = ("convolution", "_convolution", "convolution_backward")
_NO_WORK = ("prim", "profiler")
"""The namespaces of operators that do no work: questions, such as which device a tensor is on, and ranges."""
COLLECTIVE = "c10d::"
"""The beginning of the names of collectives."""
FUNCTIONAL = "_c10d_functional::"
"""The beginning of the names of those that return new tensors."""
_TAKES_ROWS = ("embedding", "index_select", "gather", "index", "_embedding_bag", "take_along_dim")
_NO_LAUNCH = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")
_ZERO = "_efficientzerotensor"
"""The operator that makes a tensor of zeros without memory."""
_FILLS = ("zero_", "fill_", "copy_", "_foreach_zero_", "_foreach_copy_", "normal_", "uniform_", "random_", "bernoulli_")
_MULTIPLIES = ("addbmm", "addmv", "mv", "dot", "_cdist_forward", "_euclidean_dist", "cholesky", "_thnn_fused_lstm_cell")
_CPU_FLASH = {
    "_scaled_dot_product_flash_attention_for_cpu": sdpa_flop,
    "_scaled_dot_product_flash_attention_for_cpu_backward": sdpa_backward_flop,
}
"""The FLOP formulas of the attention operators in PyTorch's CPU build, for which PyTorch's counter has none."""
_ADDED_UP = "aten::add"
_SUMS_ITSELF = "Atan2Backward0"
"""A node whose own work has a sum: of several sums that it runs, none is known to be autograd's."""
_OWN_WORK = {"aten::logical_and": "aten::logical_and_", "aten::masked_fill": "aten::masked_fill_"}
"""The operators by which a node changes in place what it has made itself."""
_WRITTEN_INTO_ZEROS = {
    "aten::index_fill": "aten::index_fill_",
    "aten::index_put": "aten::_index_put_impl_",
    "aten::put": "aten::put_",
    "aten::scatter": "aten::scatter_",
    "aten::scatter_add": "aten::scatter_add_",
    "aten::index_add": "aten::index_add_",
}


def is_operator(func: object) -> bool:
    """Whether a dispatch mode's ``func`` is an operator that may do work; False for higher-order operators."""
    return isinstance(func, OpOverload) and func.namespace not in _NO_WORK


class Hidden:
    """The memory and launches of a device's kernels inside of one operator, which dispatch does not show.

    This base class stands for a device whose operators allocate nothing inside and launch one kernel each.
    """

    device_type: str | None = None
    """The type of the device whose memory is traced; None: memory of all devices is traced."""

    def before(self) -> None:
        """Prepare for an operator that is about to run."""

    def blocks_of(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
        """Return the bytes of each block that one call allocates and frees inside.

        The number of blocks is the same at each size of the arguments, with 0 bytes for a block that is not needed.
        """
        return ()

    def least_bytes(self, name: str, args: tuple[Any, ...]) -> int:
        """Return the least bytes of the block of a call's result, which may be larger than the result."""
        return 0

    def on_host(self, name: str) -> tuple[int, ...]:
        """Return the positions of results that are not in the device's memory."""
        return ()

    def launches_of(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Return the number of kernels that one call launches."""
        return 1

    def lists_of(self, name: str, args: tuple[Any, ...]) -> Lists | None:
        """Return the lists from which an operator's launches follow; None for an operator that takes no lists."""
        return None


@dataclass(frozen=True)
class Kind:
    """The properties of an operator that are known before a call."""

    name: str
    """The operator's name: ``aten::mm``."""
    is_view: bool
    """Whether the results are views of the arguments."""
    launches: bool
    """Whether the operator does anything on the device; ``empty`` only allocates."""
    writes: tuple[int, ...]
    """The positions of the arguments that the operator writes to."""
    writes_by_name: tuple[str, ...]
    only_fills: bool
    """Whether the operator overwrites an argument in place without reading it."""
    flops: Callable[..., Any] | None
    is_product: bool
    takes_rows: bool
    is_convolution: bool
    causal_at: int | None
    """The position of the argument ``is_causal``; None if the operator has none."""


@cache
def kind_of(func: OpOverload) -> Kind:
    """Return the properties of an operator, from its schema."""
    schema = schema_of(func)
    returned = [result.alias_info for result in schema.returns]
    written = [
        (position, argument)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    packet = func.overloadpacket
    base = schema.name.split("::")[-1]
    formula: Any = flop_registry.get(packet) or _CPU_FLASH.get(base)
    return Kind(
        name=schema.name,
        is_view=base == _ZERO
        or (bool(returned) and all(alias is not None and not alias.is_write for alias in returned)),
        launches=base not in _NO_LAUNCH and torch.Tag.inplace_view not in func.tags,
        # A collective writes to its first argument, though its schema does not say so.
        writes=(0,) if schema.name.startswith(COLLECTIVE) else tuple(position for position, _ in written),
        writes_by_name=tuple(argument.name for _, argument in written),
        only_fills=base in _FILLS,
        flops=formula,
        is_product=formula is not None or base.rstrip("_") in (*_MATMULS, *_CONVOLUTIONS),
        takes_rows=base in _TAKES_ROWS,
        is_convolution="convolution" in base,
        causal_at=next((at for at, argument in enumerate(schema.arguments) if argument.name == "is_causal"), None),
    )


def are_of_many_ranks(types: Iterable[type]) -> bool:
    """Whether tensors of these types are in parts in many ranks (``DTensor``), or results that are on their way.

    A dispatch mode leaves a call on them to their class, which calls the operators on this rank's part in turn.
    """
    return any(one.__module__.startswith("torch.distributed.") for one in types)


def flops_of(kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Return the multiplications and additions of one call; 0 if the operator has no formula."""
    return 0 if kind.flops is None else int(kind.flops(*args, **kwargs, out_val=result))


def bytes_of(kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Return the bytes read and written in one call; 0 for an operator that only allocates, and for a collective.

    A collective's bytes pass a network (``predicted.world.network``).
    """
    if not kind.launches or kind.name.startswith((COLLECTIVE, FUNCTIONAL)):
        return 0
    made = list(tensors_in(result))
    written = [args[position] for position in kind.writes if position < len(args)]
    written += [kwargs[name] for name in kind.writes_by_name if name in kwargs]
    in_place = list(tensors_in(written))
    known = {id(tensor) for tensor in in_place}
    write_bytes = sum(map(_touched_bytes, [*in_place, *(tensor for tensor in made if id(tensor) not in known)]))
    # What is written in place is read too, unless it is only filled; an ``out=`` is not.
    operands = [one for position, one in enumerate(args) if not (kind.only_fills and position in kind.writes)]
    operands += [one for name, one in kwargs.items() if name not in kind.writes_by_name]
    read = [_touched_bytes(tensor) for tensor in tensors_in(operands)]
    if kind.takes_rows:
        read = [min(size, write_bytes) for size in read]
    return write_bytes + sum(read)


def dtype_of(kind: Kind, args: tuple[Any, ...], result: Any) -> str:
    """Return the dtype in which an operator's products are computed (or ``tf32``), else the dtype of its result.

    Empty if the call has no tensor.
    """
    first = next(tensors_in(args if kind.is_product else result), None)
    if first is None:
        return ""
    if kind.is_product and first.dtype is torch.float32:
        # cuDNN has a switch of its own, which is on unless somebody turns it off.
        in_tf32 = (
            torch.backends.cudnn.allow_tf32
            if kind.is_convolution
            else torch.get_float32_matmul_precision() != "highest"
        )
        return "tf32" if in_tf32 else "float32"
    return str(first.dtype).removeprefix("torch.")


def is_causal_call(kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of fused attention sets ``is_causal``, so that no query sees later keys."""
    if kind.causal_at is None:
        return False
    return bool(args[kind.causal_at] if kind.causal_at < len(args) else kwargs.get("is_causal", False))


def multiplies(name: str) -> bool:
    """Whether an operator is known to compute products although PyTorch's counter has no formula for it."""
    base = name.removeprefix("aten::")
    return base in _MULTIPLIES or base.startswith(("linalg_", "_linalg_", "_fft_", "mkldnn_rnn", "_cudnn_rnn"))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in an operator's arguments or results, including those in lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)


def _touched_bytes(tensor: Tensor) -> int:
    if tensor.layout is not torch.strided:
        return int(tensor.numel()) * tensor.element_size()
    count = tensor.element_size()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride:
            count *= size
        elif not size:
            return 0
    return count


def in_place(operator: str, made_in: int | None) -> str | None:
    """Return the in-place operator that autograd would call now without a dispatch mode; None if it calls this one.

    Calls of a node written in Python, or of a forward that is run again, are taken as written.

    Args:
        operator: the operator's name.
        made_in: the number of the backward node that made the first operand, None if no node did. Autograd adds up
            gradients between nodes, so a node other than the running one made the operand, or one that gives two
            gradients to one place; any other sum of operands that the running node made is the node's own work.
    """
    if operator not in (_ADDED_UP, *_OWN_WORK, *_WRITTEN_INTO_ZEROS):
        return None
    if torch.is_grad_enabled() or not is_in_backward():
        return None
    node = current_node()
    if node is None or isinstance(node, torch.autograd.function.BackwardCFunction):
        return None
    if operator == _ADDED_UP:
        is_sum = made_in is not None and (made_in != sequence_number(node) or _gives_twice(node))
        return "aten::add_" if is_sum else None
    if operator in _OWN_WORK:
        return _OWN_WORK[operator] if made_in == sequence_number(node) else None
    return _WRITTEN_INTO_ZEROS[operator]


def _gives_twice(node: Any) -> bool:
    """Whether a backward node, which sums nothing itself, gives one input of a node two gradients, as of ``x * x``."""
    if node.name() == _SUMS_ITSELF:
        return False
    given = [one for one in node.next_functions if one[0] is not None]
    return len(set(given)) < len(given)
