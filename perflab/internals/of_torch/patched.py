"""Private attributes that a prediction replaces, as (owner, name), and their replacement for the length of a block.

A case calls the public function around each of them: patching that function would leave PyTorch's own calls unchanged.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from typing import Any

from perflab.internals.lookup import TORCH, attribute, lookup, missing
from perflab.internals.of_torch.tracing import forget_shapes

Target = tuple[Any, str]
"""An owner and the name of its attribute, as ``getattr`` takes them."""

_RANKS = "predict a rank of many"


def _target(module: str, names: str, to: str) -> Target:
    lookup(TORCH, f"{module}:{names}", to)
    owner, _, name = names.rpartition(".")
    return (lookup(TORCH, f"{module}:{owner}", to) if owner else importlib.import_module(module)), name


def casts_of_custom_functions() -> Target:
    """Return the target of the function by which ``torch.amp.custom_fwd`` casts arguments.

    The target works where ``custom_fwd`` has bound the device's name already.
    """
    return _target("torch.amp.autocast_mode", "_cast", "cast what custom autograd functions take")


def casts_of_custom_operators() -> list[Target]:
    """Return the targets of the function by which ``torch.library.register_autocast`` casts arguments.

    One target is in the module that defines the function, the other in the module that imports it.
    """
    to = "cast what custom operators take"
    return [_target("torch._library.custom_ops", "_cast", to), _target("torch.library", "_cast", to)]


def backward_of_the_engine() -> Target:
    """Return the target of the function that ``Tensor.backward`` and ``torch.autograd.grad`` both run.

    A mode is inactive while it handles these two.
    """
    return _target("torch.autograd", "_engine_run_backward", "redirect cuda within a backward")


def device_of_a_fake_tensor() -> tuple[Target, property]:
    """Return ``FakeTensor.device`` as a target, and the property itself."""
    to = "have fake tensors say that they are on a GPU"
    owner, name = _target("torch._subclasses.fake_tensor", "FakeTensor.device", to)
    usual = vars(owner).get(name)
    if not isinstance(usual, property) or usual.fget is None:
        raise missing(TORCH, "property FakeTensor.device", to)
    return (owner, name), usual


def ranges_of_nvtx() -> Target:
    """Return the target of the native part behind ``torch.cuda.nvtx``; a CPU build has a stub that raises."""
    return _target("torch.cuda.nvtx", "_nvtx", "let a case mark ranges where there is no GPU")


def steps_of_grad_scaler() -> Target:
    """Return ``GradScaler._maybe_opt_step`` as a target; it looks at a tensor's numbers before it takes a step."""
    return _target("torch.amp", "GradScaler._maybe_opt_step", "let GradScaler step without numbers")


def initial_scale(scaler: Any) -> float:
    """Return the initial scale of a ``GradScaler``, 1 if the scaler is disabled.

    ``get_scale()`` is public, but asks a tensor for its number.
    """
    if not attribute(TORCH, scaler, "_enabled", "know a GradScaler's scale"):
        return 1.0
    return float(attribute(TORCH, scaler, "_init_scale", "know a GradScaler's scale"))


def truncated_normal() -> Target:
    """Return the target of the function by which ``torch.nn.init.trunc_normal_`` draws.

    Users import the public function by name, before any patch.
    """
    return _target("torch.nn.init", "_no_grad_trunc_normal_", "draw fake parameters without looking at them")


def devices_of_foreach() -> Iterator[Target]:
    """Yield the targets of the function that tells which devices have ``_foreach_`` kernels.

    There is a target in every module that has imported the function by name.
    """
    name = "_get_foreach_kernels_supported_devices"
    yield _target("torch.utils._foreach_utils", name, "choose optimizers as on CUDA")
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("torch.optim") and hasattr(module, name):
            yield module, name


def enter_without_gradients(mode: Any) -> None:
    """Enter an ``inference_mode`` as ``no_grad``, or as ``enable_grad`` if it is switched off.

    The ``__exit__`` of ``inference_mode`` leaves the context that is stored under this private name, or raises.
    """
    import torch

    mode._inference_mode_context = torch.no_grad() if mode.mode else torch.enable_grad()
    mode._inference_mode_context.__enter__()


def making_of_a_mesh() -> Target:
    """Return ``DeviceMesh.__init__`` as a target; it reads the numbers of its ranks from a tensor (``_rank_map``)."""
    return _target("torch.distributed.device_mesh", "DeviceMesh.__init__", _RANKS)


def making_of_ddp() -> Target:
    """Return ``DistributedDataParallel.__init__`` as a target; its C++ keeps in tensors what a step has used."""
    return _target("torch.nn.parallel.distributed", "DistributedDataParallel.__init__", _RANKS)


def before_forward_of_ddp() -> Target:
    """Return the target of what DDP does before a forward; it reads the order of its buckets from tensors."""
    return _target("torch.nn.parallel.distributed", "DistributedDataParallel._pre_forward", _RANKS)


def parameters_compared_by_ddp() -> Target:
    """Return the target of the function by which DDP compares the shapes of its parameters between ranks."""
    return _target("torch.nn.parallel.distributed", "_verify_param_shape_across_processes", _RANKS)


def metadata_of_dtensors() -> Target:
    """Return the target of the method that runs an operator on whole fake tensors, to know a ``DTensor`` result."""
    propagator = "ShardingPropagator._propagate_tensor_meta_non_cached"
    return _target("torch.distributed.tensor._sharding_prop", propagator, _RANKS)


_ABSENT = object()


@contextmanager
def attributes_replaced(replacements: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Within the block, each ``owner.name`` is the given value.

    Raises:
        InternalsError: an owner has no such attribute. Without the error a prediction would silently be that of another
            device.
    """
    before: list[tuple[Any, str, Any]] = []
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
