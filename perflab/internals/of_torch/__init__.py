"""All private and undocumented parts of PyTorch that perflab uses; no other package of perflab names any.

Each part says what it is for, what is public instead, and why the public way does not suffice. The parts were checked
with PyTorch 2.13.0, by all tests; in the files of 2.11.0 and 2.12.0 each name was looked up, and nothing was run. A
name that the installed version does not have raises an ``InternalsError`` where it is needed; a part that is evidence
alone is left out instead, and its docstring says so.

- here: classes, loaded when they are imported by name
- ``dispatch``: operators, kernels registered for a while, modes
- ``tracing``: where autograd is, storages, modules, how fake tensors are made
- ``patched``: attributes that a prediction replaces
- ``loaders``: the iterators of ``DataLoader`` with workers
- ``compiler``: what ``torch.compile`` did
- ``machine``: allocators, the profiler, valgrind, the processor

Importing any of these modules does not load PyTorch; using its content does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perflab.internals.lookup import TORCH, lookup

if TYPE_CHECKING:
    from torch._ops import OpOverload as OpOverload
    from torch._subclasses.fake_tensor import DataDependentOutputException as DataDependentOutputException
    from torch._subclasses.fake_tensor import DynamicOutputShapeException as DynamicOutputShapeException
    from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
    from torch._subclasses.fake_tensor import UnsupportedFakeTensorException as UnsupportedFakeTensorException
    from torch._subclasses.fake_tensor import UnsupportedOperatorException as UnsupportedOperatorException
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils.flop_counter import flop_registry as flop_registry
    from torch.utils.flop_counter import sdpa_backward_flop as sdpa_backward_flop
    from torch.utils.flop_counter import sdpa_flop as sdpa_flop
    from torch.utils.weak import WeakTensorKeyDictionary as WeakTensorKeyDictionary

_FAKE = "torch._subclasses.fake_tensor"
_FLOPS = "torch.utils.flop_counter"

_CLASSES = {
    # The class of an operator at the dispatcher. The public operator, torch.ops.aten.add.Tensor, does not name it.
    "OpOverload": ("torch._ops", "tell operators from compositions of operators"),
    # "Extending PyTorch" documents the class under this private path; there is no other.
    "TorchDispatchMode": ("torch.utils._python_dispatch", "see operators where they are dispatched"),
    # Documented under its private path too. The public meta device has shapes alone: a tensor's device is lost on the
    # meta device, and so are the kernels that a CPU or CUDA would choose, and that scalars may stay on the CPU.
    "FakeTensor": (_FAKE, "run code without its numbers"),
    "FakeTensorMode": (_FAKE, "run code without its numbers"),
    # Exceptions of a fake tensor. Nothing public says why an operator cannot be run: publicly these are RuntimeErrors.
    "DataDependentOutputException": (_FAKE, "say which line needs numbers"),
    "DynamicOutputShapeException": (_FAKE, "say which line needs numbers"),
    "UnsupportedFakeTensorException": (_FAKE, "say which line needs numbers"),
    "UnsupportedOperatorException": (_FAKE, "say which operator has no shapes"),
    # FlopCounterMode is public, but counts a whole call, not operator by operator with the module that asked.
    "flop_registry": (_FLOPS, "know what an operator computes"),
    "sdpa_flop": (_FLOPS, "know what attention on a CPU computes"),
    "sdpa_backward_flop": (_FLOPS, "know what attention on a CPU computes"),
    # weakref.WeakKeyDictionary compares keys, and tensors compare element by element.
    "WeakTensorKeyDictionary": ("torch.utils.weak", "remember casts by tensor, as autocast does"),
}
"""Module and purpose of each class, by its name; the comment above each says why there is no public way."""


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, to = _CLASSES[name]
    return lookup(TORCH, f"{module}:{name}", to)
