"""Finds calls of autograd that make a new tensor under a dispatch mode, and work in place without the mode.

Without a mode, autograd adds gradients that meet to the first one, in its memory
(``torch/csrc/autograd/input_buffer.cpp``), and writes the gradients of picked rows into zeros
(``FunctionsManual.cpp``). Autograd does neither in place if a tensor may be of a subclass, as any tensor may under a
mode. So a trace treats such a call as the in-place one: the result takes over the first operand's memory if that memory
is freed at once.
"""

from __future__ import annotations

import torch

from perflab.internals.of_torch.tracing import current_node, is_in_backward, sequence_number

_ADDED_UP = "aten::add"
_WRITTEN_INTO_ZEROS = {
    "aten::index_put": "aten::_index_put_impl_",
    "aten::scatter": "aten::scatter_",
    "aten::scatter_add": "aten::scatter_add_",
    "aten::index_add": "aten::index_add_",
}


def in_place(operator: str, made_in: int | None) -> str | None:
    """Return the in-place operator that autograd would call now without a dispatch mode; None if it calls this one.

    Calls of a node written in Python, or of a forward that is run again, are taken as written.

    Args:
        operator: the operator's name.
        made_in: the number of the backward node that made the first operand, None if no node did. Autograd adds up
            gradients between nodes, so a node other than the running one made the operand; a sum of operands that the
            running node made is the node's own work.
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
