"""What autograd does in place where nobody watches; under a dispatch mode it calls operators that make a new tensor.

Gradients that meet are added up in the first one's memory (``torch/csrc/autograd/input_buffer.cpp``), and those of rows
that were picked are written into zeros (``FunctionsManual.cpp``), unless a tensor may be of a subclass; with a mode on
each may be. So such a call is what it would be without the mode, and its result takes over its first operand's memory
where that is given back at once.
"""

from __future__ import annotations

import torch

from perflab.torch_internals.tracing import current_node, is_in_backward, sequence_number

_ADDED_UP = "aten::add"
_WRITTEN_INTO_ZEROS = {
    "aten::index_put": "aten::_index_put_impl_",
    "aten::scatter": "aten::scatter_",
    "aten::scatter_add": "aten::scatter_add_",
    "aten::index_add": "aten::index_add_",
}


def in_place(operator: str, made_in: int | None) -> str | None:
    """The operator that autograd itself would call in place of this one now; None where it calls this one.

    What a node of Python's does, or a forward that is run again, is as it is written.

    Args:
        operator: its name.
        made_in: the number of the node that made its first operand. Between nodes gradients are added up: that was
            another than the one that runs. Within a node a sum is the node's own.
    """
    if operator != _ADDED_UP and operator not in _WRITTEN_INTO_ZEROS:
        return None
    if torch.is_grad_enabled() or not is_in_backward():
        return None
    node = current_node()
    if node is None or isinstance(node, torch.autograd.function.BackwardCFunction):
        return None
    if operator == _ADDED_UP:
        return "aten::add_" if made_in is not None and made_in != sequence_number(node) else None
    return _WRITTEN_INTO_ZEROS[operator]
