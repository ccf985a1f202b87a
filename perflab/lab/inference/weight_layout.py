"""The layout of weights in memory while a model decodes one token of one sequence.

A product of one row with W (d_out, d_in) reads W once and does nothing else, so that it takes as long as reading does.
On a CPU, libraries read a matrix with more rows than columns faster column by column, and one with fewer row by row,
as `nn.Linear` stores all of them.
"""

from typing import TypeVar

from torch import nn

_Model = TypeVar("_Model", bound=nn.Module)


def lay_out_for_decode(model: _Model) -> _Model:
    """Store the weights of every `nn.Linear` with d_out > d_in column by column, in place; returns the model.

    Shapes and values stay; a product may sum in another order. Weights that another kind of module shares, such as a
    tied embedding, stay as they are: a lookup reads rows. Casting the model or moving it keeps the layout.
    """
    others = (module for module in model.modules() if not isinstance(module, nn.Linear))
    shared = {id(parameter) for module in others for parameter in module.parameters(recurse=False)}
    for module in model.modules():
        if isinstance(module, nn.Linear) and id(module.weight) not in shared:
            weight = module.weight.data
            if weight.shape[0] > weight.shape[1]:
                module.weight.data = weight.t().contiguous().t()
    return model
