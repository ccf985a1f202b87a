"""Calls as functions of the tensors among their arguments, which can then be given other values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


class Flat:
    """A call as a function of the dense tensors among its arguments; it returns the tensors and numbers in its result.

    Attributes:
        inputs: these tensors, by name: their keywords, or ``argument 0`` by position. Those in lists are left where
            they are. What is sent to another process has to be without them.
        writes: the names of inputs that the call writes to, which are then results as well.
    """

    def __init__(self, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        given = {**{f"argument {number}": one for number, one in enumerate(args)}, **kwargs}
        self._call, self._positional = call, len(args)
        self.inputs: dict[str, torch.Tensor] = {name: one for name, one in given.items() if is_dense(one)}
        self.writes: list[str] = []
        self._names = list(self.inputs)
        self._leaves = {name for name, one in self.inputs.items() if one.requires_grad}
        self._given = {**given, **dict.fromkeys(self._names)}

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Make the call with these tensors, and return the tensors and numbers of its result."""
        taken = {
            name: one.detach().requires_grad_() if name in self._leaves else one
            for name, one in zip(self._names, inputs, strict=True)
        }
        given = self._given | taken
        args = [given.pop(f"argument {number}") for number in range(self._positional)]
        found: list[torch.Tensor] = []
        _collect(self._call(*args, **given), found)
        return [*found, *(taken[name].detach() for name in self.writes)]


def is_dense(value: object) -> bool:
    """Whether a value is a tensor whose values can be copied: strided, plain, and on a device."""
    import torch

    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return False
    assert isinstance(value, torch.Tensor)
    is_plain = value.layout is torch.strided and not value.is_nested and not value.is_quantized
    return is_plain and value.device.type != "meta"


def _collect(value: Any, found: list[torch.Tensor]) -> None:
    import torch

    if isinstance(value, torch.Tensor):  # a subclass stays as it is, and is refused: it may compute when it is read
        found.append(value.detach() if type(value) in (torch.Tensor, torch.nn.Parameter) else value)
    elif isinstance(value, bool | int | float | complex):
        found.append(torch.as_tensor(value))
    elif isinstance(value, dict):
        for name in sorted(value, key=str):
            _collect(value[name], found)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _collect(getattr(value, field.name), found)
    elif isinstance(value, list | tuple):
        for one in value:
            _collect(one, found)
