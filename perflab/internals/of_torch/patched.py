"""Private attributes that predictions and profiles replace, as (owner, name), for the length of a block.

A case calls the public function around each of them: patching that function would leave PyTorch's own calls unchanged.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from perflab.internals.lookup import TORCH, attribute, lookup, missing
from perflab.internals.of_torch.tracing import forget_shapes

Target = tuple[Any, str]
"""An owner and the name of its attribute, as ``getattr`` takes them."""
Replacement = tuple[Any, str, Any]
"""An owner, the name of its attribute, and the value that the attribute gets."""


class Private(NamedTuple):
    """A private attribute that perflab replaces: its module, its names from there on, and the purpose as a verb."""

    module: str
    names: str
    to: str

    def target(self) -> Target:
        """Return the owner and the name.

        Raises:
            InternalsError: there is no such attribute.
        """
        lookup(TORCH, f"{self.module}:{self.names}", self.to)
        owner, _, name = self.names.rpartition(".")
        return (
            lookup(TORCH, f"{self.module}:{owner}", self.to) if owner else importlib.import_module(self.module)
        ), name

    def run_in(self, context: Callable[[], AbstractContextManager[object]]) -> Replacement:
        """Return the replacement of a function by one that does the same, each time within a new context."""
        owner, name = self.target()
        usual = getattr(owner, name)

        def run(*arguments: Any, **keywords: Any) -> Any:
            __tracebackhide__ = True
            with context():
                return usual(*arguments, **keywords)

        return owner, name, run


_RANKS = "predict a rank of many"
_DDP = "torch.nn.parallel.distributed"
CAST_OF_CUSTOM_FUNCTIONS = Private("torch.amp.autocast_mode", "_cast", "cast what custom autograd functions take")
"""The function by which ``torch.amp.custom_fwd`` casts arguments. Replacing it works where ``custom_fwd`` has bound the
device's name already."""
CASTS_OF_CUSTOM_OPERATORS = tuple(
    Private(module, "_cast", "cast what custom operators take")
    for module in ("torch._library.custom_ops", "torch.library")
)
"""The function by which ``torch.library.register_autocast`` casts arguments: in the module that defines the function,
and in the one that imports it."""
BACKWARD = Private("torch.autograd", "_engine_run_backward", "know what runs within a backward")
"""The function that ``Tensor.backward`` and ``torch.autograd.grad`` both run. A mode is inactive while it handles these
two."""
NVTX = Private("torch.cuda.nvtx", "_nvtx", "let a case mark ranges where there is no GPU")
"""The native part behind ``torch.cuda.nvtx``; a CPU build has a stub that raises."""
STEP_OF_GRAD_SCALER = Private("torch.amp", "GradScaler._maybe_opt_step", "let GradScaler step without numbers")
"""The step of a ``GradScaler``, which looks at a tensor's numbers first."""
TRUNCATED_NORMAL = Private("torch.nn.init", "_no_grad_trunc_normal_", "draw fake parameters without looking at them")
"""The function by which ``torch.nn.init.trunc_normal_`` draws. Users import the public function by name, before any
patch."""
MAKING_OF_A_MESH = Private("torch.distributed.device_mesh", "DeviceMesh.__init__", _RANKS)
"""The constructor of a mesh, which reads the numbers of its ranks from a tensor (``_rank_map``)."""
MAKING_OF_DDP = Private(_DDP, "DistributedDataParallel.__init__", _RANKS)
"""The constructor of DDP; its C++ keeps in tensors what a step has used."""
BEFORE_FORWARD_OF_DDP = Private(_DDP, "DistributedDataParallel._pre_forward", _RANKS)
"""The preparation of a forward in DDP, which reads the order of its buckets from tensors."""
PARAMETERS_COMPARED_BY_DDP = Private(_DDP, "_verify_param_shape_across_processes", _RANKS)
"""The function by which DDP compares the shapes of its parameters between ranks."""
METADATA_OF_DTENSORS = Private(
    "torch.distributed.tensor._sharding_prop", "ShardingPropagator._propagate_tensor_meta_non_cached", _RANKS
)
"""The method that runs an operator on whole fake tensors, to know a ``DTensor`` result."""
_DEVICE = Private("torch._subclasses.fake_tensor", "FakeTensor.device", "have fake tensors say that they are on a GPU")
_FOREACH = Private(
    "torch.utils._foreach_utils", "_get_foreach_kernels_supported_devices", "choose optimizers as on CUDA"
)


def device_of_a_fake_tensor() -> tuple[Target, property]:
    """Return ``FakeTensor.device`` as a target, and the property itself."""
    owner, name = _DEVICE.target()
    usual = vars(owner).get(name)
    if not isinstance(usual, property) or usual.fget is None:
        raise missing(TORCH, "property FakeTensor.device", _DEVICE.to)
    return (owner, name), usual


def devices_of_foreach() -> Iterator[Target]:
    """Yield the targets of the function that tells which devices have ``_foreach_`` kernels.

    There is a target in every module that has imported the function by name.
    """
    yield _FOREACH.target()
    # A copy: a list of pairs is made in steps, between which the collector may run a finalizer that imports.
    for module_name, module in sys.modules.copy().items():
        if module_name.startswith("torch.optim") and hasattr(module, _FOREACH.names):
            yield module, _FOREACH.names


def initial_scale(scaler: Any) -> float:
    """Return the initial scale of a ``GradScaler``, 1 if the scaler is disabled.

    ``get_scale()`` is public, but asks a tensor for its number.
    """
    if not attribute(TORCH, scaler, "_enabled", "know a GradScaler's scale"):
        return 1.0
    return float(attribute(TORCH, scaler, "_init_scale", "know a GradScaler's scale"))


def enter_without_gradients(mode: Any) -> None:
    """Enter an ``inference_mode`` as ``no_grad``, or as ``enable_grad`` if it is switched off.

    The ``__exit__`` of ``inference_mode`` leaves the context that is stored under this private name, or raises.
    """
    import torch

    mode._inference_mode_context = torch.no_grad() if mode.mode else torch.enable_grad()
    mode._inference_mode_context.__enter__()


_ABSENT = object()


@contextmanager
def attributes_replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    """Within the block, each ``owner.name`` is the given value.

    Raises:
        InternalsError: an owner has no such attribute. Without the error a prediction would silently be that of another
            device.
    """
    before: list[Replacement] = []
    try:
        for owner, name, value in replacements:
            if not hasattr(owner, name):
                raise missing(TORCH, f"{getattr(owner, '__name__', owner)}.{name}", "predict what a GPU would do")
            # Save a class's own entry alone, so that restoring does not copy an inherited attribute into the class.
            old = vars(owner).get(name, _ABSENT) if isinstance(owner, type) else getattr(owner, name)
            before.append((owner, name, old))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, old in reversed(before):
            if old is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, old)


@contextmanager
def backward_run_by(run: Callable[..., Any]) -> Iterator[None]:
    """Run each backward in the block by ``run(engine, *arguments)``; ``engine(*arguments)`` is the backward itself.

    ``Tensor.backward`` deactivates the modes before it begins, and the function that it calls has no public name.
    """
    owner, name = BACKWARD.target()
    with attributes_replaced([(owner, name, partial(run, getattr(owner, name)))]):
        yield


@contextmanager
def shape_rules_replaced(table: dict[Any, Any], rules: Mapping[Any, Any]) -> Iterator[None]:
    """Within the block, PyTorch's table has these rules for shapes of fake tensors, by operator.

    PyTorch prefers a decomposition in Python to a rule, unless the operator is in its table of shape functions too. It
    caches the results of fake tensors by shape and dtype, so the cache is cleared at the block's start and end.
    """
    functions: dict[Any, Any] = lookup(TORCH, "torch._decomp:meta_table", "predict what a GPU would do")
    before = [(one, operator, one.get(operator, _ABSENT)) for one, operator in product((table, functions), rules)]
    table.update(rules)
    functions.update(rules)
    forget_shapes()
    try:
        yield
    finally:
        for one, operator, rule in before:
            if rule is _ABSENT:
                del one[operator]
            else:
                one[operator] = rule
        forget_shapes()
