"""Runs a function under test once: its outputs, its gradients, and whether it changed its inputs.

Inputs are {name: tensor} in the order of the function's arguments, outputs are named by the task, and the
gradient of input `q` is named `dq`. `verify` decides what is run, and on what; `compare` judges.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from perflab.correctness.poison import PoisonedMemory

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

Function = Callable[..., Tensor | Sequence[Tensor]]

# Inputs are drawn from small seeds. From an input's seed, a gradient would be the first input, number by number.
_UPSTREAM_SEED = 1_000_000


@dataclass(frozen=True, slots=True)
class Task:
    """The task of every run: the outputs' names, the outputs that get an upstream gradient, and the settings."""

    outputs: tuple[str, ...]
    gradient_of: tuple[str, ...]
    upstream: Callable[[Tensor, int], Tensor]
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """The results of one run of the candidate.

    results   copies of the outputs and gradients; None for a gradient that the candidate does not give
    live      the returned tensors themselves, detached
    upstream  the gradients that were passed to the candidate's backward
    """

    results: Mapping[str, Tensor | None]
    live: Mapping[str, Tensor]
    upstream: Mapping[str, Tensor]


Held = contextlib.AbstractContextManager[Function]
Elsewhere = Callable[[Function, Mapping[str, Tensor], Task, Sequence[Function]], Held]
"""A function that holds a candidate elsewhere than in this process, with the arguments of ``held``."""
_elsewhere: list[Elsewhere] = []


@contextlib.contextmanager
def held_elsewhere(how: Elsewhere) -> Iterator[None]:
    """Hold candidates elsewhere, for the length of the block."""
    _elsewhere.append(how)
    try:
        yield
    finally:
        _elsewhere.remove(how)


def held(candidate: Function, inputs: Mapping[str, Tensor], task: Task, trusted: Sequence[Function]) -> Held:
    """Return a context with the candidate as a function to call: itself, or elsewhere under ``--perf-adversarial``.

    Elsewhere is a place that does not have the ``trusted`` functions. ``inputs`` show how inputs will look.
    """
    if _elsewhere:
        return _elsewhere[-1](candidate, inputs, task, trusted)
    return contextlib.nullcontext(candidate)


def run_candidate(candidate: Function, inputs: Mapping[str, Tensor], task: Task, seed: int, label: str) -> Run:
    """Run the candidate's forward and, if the task says so, its backward, in poisoned memory.

    AssertionError for missing outputs or gradients, and for inputs that changed. The candidate's own
    exceptions pass through with a note of `label` and seed.
    """
    leaves = _leaves(inputs, bool(task.gradient_of))
    watched = dict(inputs)
    before = {name: storage_bytes(tensor).clone() for name, tensor in watched.items()}
    try:
        with PoisonedMemory():
            returned = _named(candidate(*leaves.values(), **task.settings), task.outputs)
            # Copied on the current stream and at once: elements that a side stream has yet to write are still NaN.
            results: dict[str, Tensor | None] = {name: x.detach().clone() for name, x in returned.items()}
        upstream = {}
        for number, name in enumerate(task.gradient_of):
            upstream[name] = task.upstream(returned[name].detach(), _UPSTREAM_SEED + seed + number)
            watched[f"the gradient of {name}"] = upstream[name]
            before[f"the gradient of {name}"] = storage_bytes(upstream[name]).clone()
        if task.gradient_of:
            for name in task.gradient_of:
                if not returned[name].requires_grad:
                    raise AssertionError(
                        f"{name} does not require a gradient though the inputs do: the candidate has no backward, "
                        f"or detaches; leave {name} out of gradient_of if that is intended"
                    )
            with PoisonedMemory():
                gradients = _gradients(returned, leaves, upstream)
                results |= {name: None if x is None else x.clone() for name, x in gradients.items()}
    except Exception as error:
        error.add_note(f"in {label} of the candidate, seed {seed}")
        raise
    changed = [name for name, tensor in watched.items() if not same_bits(storage_bytes(tensor), before[name])]
    if changed:
        raise AssertionError(
            f"{label}: the candidate changed {', '.join(changed)}, or memory between the elements; "
            f"inputs must come back bit by bit"
        )
    return Run(results, {name: x.detach() for name, x in returned.items()}, upstream)


def run_plainly(
    function: Function, inputs: Mapping[str, Tensor], task: Task, upstream: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return outputs and gradients of a trusted function, which may return more than the task names.

    The gradient of an input that has no part in the outputs is zero.
    """
    leaves = _leaves(inputs, bool(task.gradient_of))
    returned = _named(function(*leaves.values(), **task.settings), task.outputs, exactly=False)
    results = {name: x.detach() for name, x in returned.items()}
    if task.gradient_of:
        for name, gradient in _gradients(returned, leaves, upstream).items():
            results[name] = torch.zeros_like(leaves[name[1:]]) if gradient is None else gradient
    return results


def storage_bytes(tensor: Tensor) -> Tensor:
    """Return the whole memory behind a tensor as bytes, including elements that the tensor skips."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal bit by bit, which holds for NaN, and tells -0.0 from 0.0."""
    # Contiguous, since every second element, flattened, is a view with gaps, of which PyTorch gives no bytes.
    a, b = (one.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8) for one in (a, b))
    return torch.equal(a, b)


def _leaves(inputs: Mapping[str, Tensor], gradients: bool) -> dict[str, Tensor]:
    """Return detached views of the inputs in their own memory and layout; if asked, floating inputs need gradients."""
    return {
        name: tensor.detach().requires_grad_(gradients and tensor.is_floating_point())
        for name, tensor in inputs.items()
    }


def _named(returned: Tensor | Sequence[Tensor], names: Sequence[str], exactly: bool = True) -> dict[str, Tensor]:
    tensors = (returned,) if isinstance(returned, Tensor) else tuple(returned)
    if len(tensors) < len(names) or (exactly and len(tensors) != len(names)):
        raise AssertionError(f"got {len(tensors)} outputs, wanted {len(names)}: {', '.join(names)}")
    for name, tensor in zip(names, tensors, strict=False):
        if not isinstance(tensor, Tensor):
            raise AssertionError(f"output {name} is a {type(tensor).__name__}, wanted a tensor")
    return dict(zip(names, tensors, strict=False))


def _gradients(
    returned: Mapping[str, Tensor], leaves: Mapping[str, Tensor], upstream: Mapping[str, Tensor]
) -> dict[str, Tensor | None]:
    """Return {"d" + input: gradient} from autograd.grad, which, unlike .backward(), adds and copies nothing."""
    wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    gradients = torch.autograd.grad(
        [returned[name] for name in upstream], list(wanted.values()), list(upstream.values()), allow_unused=True
    )
    return {f"d{name}": gradient for name, gradient in zip(wanted, gradients, strict=True)}
