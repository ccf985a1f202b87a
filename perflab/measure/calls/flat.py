"""Calls as functions of the tensors among their arguments, which can then be given other values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perflab.measure.calls.outputs import is_readable

if TYPE_CHECKING:
    import torch

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


class Flat:
    """A call as a function of the tensors among its arguments, that returns the tensors in its result."""

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        import torch

        self._call, self._positional = call, len(args)
        self._given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        self._places = [
            place
            for place, value in self._given.items()
            if type(value) is torch.Tensor and is_readable(value) and not value.requires_grad
        ]

    @property
    def names(self) -> list[str]:
        """The names of the tensors among the arguments: keywords, or ``argument 0`` by position."""
        return [place if isinstance(place, str) else f"argument {place}" for place in self._places]

    def take(self) -> list[torch.Tensor]:
        """Take the tensors out of the arguments, and return them."""
        taken = [self._given[place] for place in self._places]
        self._given.update(dict.fromkeys(self._places))
        return taken

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Make the call with these tensors, and return the tensors of its result."""
        given = self._given | dict(zip(self._places, inputs, strict=True))
        args = [given.pop(number) for number in range(self._positional)]
        found: list[torch.Tensor] = []
        _collect(self._call(*args, **given), found)
        return found


def _collect(value: Any, found: list[torch.Tensor]) -> None:
    import torch

    if isinstance(value, torch.Tensor):  # a subclass stays as it is, and is refused: it may compute when it is read
        found.append(value.detach() if type(value) in (torch.Tensor, torch.nn.Parameter) else value)
    elif isinstance(value, list | tuple | dict):
        for one in value.values() if isinstance(value, dict) else value:
            _collect(one, found)
