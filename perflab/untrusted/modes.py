"""PyTorch's modes around a call: whether gradients are recorded, autocast, and the default dtype.

A test enters them around ``perf`` or ``verify``. They decide what a call returns as its arguments do, so a process of
the candidate's own has to make its calls in the same ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


class InModes:
    """A function that is called, in any process, in the modes in which this one was when it was made."""

    def __init__(self, call: Callable[..., Any], device_type: str, *, keeps_casts: bool = False) -> None:
        """Note the modes of this thread.

        Args:
            call: the function.
            device_type: the kind of device whose autocast counts, besides the CPU's.
            keeps_casts: whether casts of weights are kept from call to call, as autocast does until it is left; each
                call would cast them once more otherwise.
        """
        self._call, self._keeps_casts = call, keeps_casts and torch.is_autocast_cache_enabled()
        self._grad, self._inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self._default_dtype = torch.get_default_dtype()
        self._caches = torch.is_autocast_cache_enabled()
        accelerator = torch.accelerator.current_accelerator()
        # Work on an accelerator may have no argument there.
        kinds = {"cpu", device_type, "cpu" if accelerator is None else accelerator.type}
        self._autocast = {
            kind: torch.get_autocast_dtype(kind) for kind in sorted(kinds) if torch.is_autocast_enabled(kind)
        }

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make a call in these modes."""
        if self._keeps_casts and self._autocast:  # casts are dropped when the outermost autocast is left: never
            torch.autocast("cpu", enabled=False).__enter__()  # type: ignore[no-untyped-call]
            self._keeps_casts = False
        with self._entered():
            return self._call(*args, **kwargs)

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self._inference))
            stack.enter_context(torch.set_grad_enabled(self._grad))
            for kind, dtype in self._autocast.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=self._caches))
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(self._default_dtype)
            yield
