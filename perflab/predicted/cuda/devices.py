"""Lets code use the device ``"cuda"`` on a machine without CUDA: fake tensors report CUDA, and lie on the CPU.

A case's own code may use ``device="cuda"``, ``.cuda()`` or ``torch.cuda.synchronize()``: such calls succeed, and change
neither shapes nor memory. A user's code that reads ``tensor.device`` or ``tensor.is_cuda`` sees CUDA, and takes its
path for CUDA; PyTorch's own code and this package's see the CPU. ``torch.cuda.is_available()`` is not replaced: code
that calls it has a path without CUDA, and that path is predicted.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.cuda
import torch.cuda.nvtx
from torch.overrides import TorchFunctionMode

from perflab.internals.of_torch import FakeTensor
from perflab.internals.of_torch.dispatch import function_mode_beneath, is_function_mode_on
from perflab.internals.of_torch.patched import (
    BACKWARD,
    NVTX,
    Replacement,
    attributes_replaced,
    device_of_a_fake_tensor,
)
from perflab.predicted.cuda.fake import call

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_CPU = torch.device("cpu")
_CUDA = torch.device("cuda", 0)
_NAME = re.compile(r"cuda(:\d+)?$")
_ON_HOST = "_perflab_on_host"

_ITSELF = (torch.Tensor.cuda, torch.Tensor.pin_memory)
"""The methods that copy a tensor to other memory; here they return the tensor itself."""

_STEPS = (torch.tensor, torch.zeros)
"""The functions that make an optimizer's step counters."""

_IS_CUDA = torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]

_device = torch.device
_generator = torch.Generator
_set_default_device = torch.set_default_device


@contextmanager
def cuda_means_cpu(capability: tuple[int, int]) -> Iterator[None]:
    """Within the block, devices of type ``cuda`` are the CPU, and the functions of ``torch.cuda`` need no GPU."""
    # A mode is off while it handles a call; ``loss.backward()`` is such a call, and a user's code may run within it.
    replacements = [*_replacements(capability), _what_a_tensor_says(), BACKWARD.run_in(_Redirected)]
    with attributes_replaced(replacements), function_mode_beneath(_Redirected()):
        yield


def on_host(tensor: torch.Tensor) -> bool:
    """Whether a fake tensor would be in host memory on a CUDA machine too, as an optimizer's step counters are."""
    return getattr(tensor, _ON_HOST, False) is True


def put_on_host(tensor: torch.Tensor) -> None:
    """Take note that a tensor would be in host memory on a CUDA machine too."""
    setattr(tensor, _ON_HOST, True)


class _Redirected(TorchFunctionMode):
    """A mode in which PyTorch's functions are called with the CPU in place of ``cuda`` in their arguments."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _ITSELF:
            return args[0]
        if func == _IS_CUDA:
            return _is_a_users(sys._getframe(1)) and args[0].device.type == "cpu" and not on_host(args[0])
        if kwargs:
            if "device" in kwargs:
                kwargs = kwargs | {"device": _cpu_for(kwargs["device"])}
            if kwargs.get("pin_memory"):
                kwargs = kwargs | {"pin_memory": False}
        if len(args) > 1 and (func is torch.Tensor.to or any(isinstance(one, _device) for one in args[1:])):
            args = (args[0], *(_cpu_for(one) for one in args[1:]))
        result = call(func, args, kwargs)
        elsewhere = isinstance(kwargs.get("device"), _device)  # else no device, or "cpu"
        if func in _STEPS and not elsewhere and _name_of(sys._getframe(1)).startswith("torch.optim"):
            put_on_host(result)  # without ``capturable`` and ``fused``, an optimizer counts its steps on the host
        return result


def _is_a_users(frame: FrameType) -> bool:
    """Whether the frame's code is neither PyTorch's nor this package's; the package's lab counts as a user."""
    name = _name_of(frame)
    if name.startswith("perflab."):
        return name.startswith("perflab.lab.")
    return name != "torch" and not name.startswith("torch.")


def _name_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _what_a_tensor_says() -> Replacement:
    """Return the replacement of ``FakeTensor.device``, which reports the GPU to a user's code."""
    (owner, name), usual = device_of_a_fake_tensor()
    look: Any = usual.fget

    def device(self: FakeTensor) -> torch.device:
        found: torch.device = look(self)
        # While PyTorch handles a call, a tensor that is requested on CUDA is not made on the CPU: in the shape function
        # of a custom operator ``device=x.device`` would make a fake CUDA tensor, and autograd ends the process when it
        # meets such a tensor on a CPU build.
        seen = found.type == "cpu" and _is_a_users(sys._getframe(1)) and not on_host(self)
        return _CUDA if seen and is_function_mode_on(_Redirected) else found

    return owner, name, property(device, usual.fset, doc=usual.__doc__)


def _cpu_for(device: Any) -> Any:
    if isinstance(device, _device):
        return _CPU if device.type == "cuda" else device
    if isinstance(device, str):
        return "cpu" if _NAME.match(device) else device
    if isinstance(device, int) and not isinstance(device, bool):
        return _CPU  # ``device=0``: the first GPU
    return device


class _Nothing:
    """A stand-in for a CUDA stream, event, device or range: entering, leaving and waiting do nothing."""

    def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
        pass

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_error: Any) -> None:
        pass

    def query(self) -> bool:
        """Return True: all work is done."""
        return True

    def elapsed_time(self, _end: Any) -> float:
        """Return the elapsed time in ms, always 0: work on fake tensors takes no time on a GPU."""
        return 0.0

    def record_event(self, event: Any = None) -> Any:
        """Return the event that was given, or a new one."""
        return _Nothing() if event is None else event

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _do_nothing


class _GeneratorMeta(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _generator)


class _Generator(metaclass=_GeneratorMeta):
    """``torch.Generator`` with the CPU in place of ``cuda``."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _generator(device=_cpu_for(device))


def _give(value: Any) -> Callable[..., Any]:
    return lambda *_arguments, **_keywords: value


_do_nothing = _give(None)


def _replacements(capability: tuple[int, int]) -> list[Replacement]:
    silent = (
        "synchronize empty_cache init set_device manual_seed manual_seed_all seed seed_all ipc_collect set_stream "
        "reset_peak_memory_stats reset_max_memory_allocated reset_max_memory_cached reset_accumulated_memory_stats "
        "set_per_process_memory_fraction"
    )
    nothing_held = "memory_allocated max_memory_allocated memory_reserved max_memory_reserved current_device"
    things = "current_stream default_stream Stream ExternalStream Event stream device device_of StreamContext"
    return [
        *((torch.cuda, name, _do_nothing) for name in silent.split()),
        *((torch.cuda, name, _give(0)) for name in nothing_held.split()),
        *((torch.cuda, name, _Nothing) for name in things.split()),
        (torch.cuda, "get_device_capability", _give(capability)),
        (torch.cuda, "is_bf16_supported", _give(capability >= (8, 0))),
        (*NVTX.target(), _Nothing()),
        (torch.Tensor, "record_stream", _do_nothing),
        (torch, "Generator", _Generator),
        (torch, "set_default_device", lambda device: _set_default_device(_cpu_for(device))),
    ]
