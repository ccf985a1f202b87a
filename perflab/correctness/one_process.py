"""Checks training in many processes against one process that does the work of all of them.

    same_as_one_process(make_model, make_step, world_size=2, exact=True)

The batch is cut into as many shards as there are processes. Each rank trains on its own shard, with whatever wrapper
``make_step`` puts around the model; one process trains on all shards, one after the other. After some steps every
parameter and optimizer state has to be the same: bit by bit, or within a budget that comes from the error of the one
process against float64.
"""

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from perflab.base.errors import UsageError
from perflab.correctness.compare import Report, compare_all
from perflab.correctness.run import same_bits
from perflab.ranks.run import LIMIT_S, in_ranks
from perflab.results.environment import usable_cores
from perflab.units import format_count, format_names

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_MOMENTS = ("exp_avg", "momentum_buffer")
"""Names of optimizer state that is linear in the gradients, from which their scale can be told."""
_SHOWN = 3
"""The number of tensors that a message compares in full."""
_NAMED = 8
_ALIKE = 1e-3
"""The largest difference, as a share of the norm, of what counts as the result of a cause."""
_ROUNDING = 1e-5
"""The largest difference, as a share of the norm, of what counts as the same numbers summed in another order."""
_UNLIKE = 0.01
"""The least difference between two factors, as a share, that counts as a mistake."""
State = dict[str, Tensor]
_NARROW = (2.0**-13, 2.0**-7)
"""Typical relative errors of a number that was rounded to 16 bits, by which half of the numbers are off."""


@dataclass(frozen=True)
class _Job:
    """A training in one process: its shards, its dtype (None: the model's own), and its steps."""

    shards: tuple[int, ...]
    dtype: torch.dtype | None = None
    steps: int | None = None
    """The number of steps; None: as many as were asked for."""


@dataclass(frozen=True)
class RankStep:
    """The training step of one process."""

    run: Callable[[], object]
    """Does one whole step, the update of the parameters included, on this process's shards."""
    optimizer: torch.optim.Optimizer | None = None
    """The optimizer, whose state is compared too; None: parameters and buffers alone."""


MakeStep = Callable[[nn.Module, Sequence[int], int], RankStep]


class Cause(enum.Enum):
    """Why training in ranks differs from one process, where a mistake reproduces the difference."""

    SUMMED = "the gradients of the ranks were added up, and not divided by their number"
    DIVIDED_TWICE = "the gradients of the ranks were divided by their number twice"
    NOT_EXCHANGED = "no gradient was exchanged: each rank trained on its own shard"
    SAME_SHARD = "all ranks trained on the first rank's shard, or took its gradient"
    OWN_WEIGHTS = "the ranks began with weights of their own"
    LEFT_OUT = "some parameters were left out of the exchange: after one step the ranks differ in these alone"
    NARROW = "the gradients were rounded to 16 bits when they were exchanged"
    WEIGHTED = (
        "the ranks' gradients were weighted otherwise: each rank divided by its own tokens, or clipped by its own norm"
    )
    SCALED = "the gradients of some parameters were scaled otherwise than those of others: exchanged or divided twice"
    LATER = (
        "the first step is right and later ones are not: they used parameters, gradients or state of an earlier step"
    )


class NotOneProcessError(AssertionError):
    """Training in ranks came out otherwise than in one process.

    Args:
        text: which tensors differ, by how much, and why if that is known.
        causes: the mistakes that would explain it.
    """

    def __init__(self, text: str, causes: Sequence[Cause]) -> None:
        super().__init__(text)
        self.causes = tuple(causes)


def same_as_one_process(
    make_model: Callable[[], nn.Module],
    make_step: MakeStep,
    *,
    world_size: int = 2,
    steps: int = 3,
    exact: bool = False,
    multiple: float = 2.0,
    seed: int = 0,
    backend: str = "gloo",
    limit_s: float = LIMIT_S,
) -> Report:
    """Train in ``world_size`` processes and in one, and compare what came out. Return the comparison.

    make_model   make_model() -> the model, unwrapped, the same in every process: the seed is set before
    make_step    make_step(model, shards, num_shards) -> RankStep; wraps the model and makes the optimizer. ``shards``
                 are the numbers of the shards that this process trains on: its own of ``num_shards``, or all in the
                 one process, which adds up their gradients, without a process group's help. Both functions stand at
                 the top level of a module: new processes import them
    world_size   the number of processes, and of shards
    steps        the number of steps before the comparison
    exact        demand the same bits. Two float32 gradients have one order of summation; more ranks than two, or a
                 norm over all gradients, may be summed in another
    multiple     how many times the error of the one process against float64 is allowed, if bits may differ. The model
                 is trained in float64 for that, on its inputs as float64; a step that fixes a dtype cannot be held so
    seed         the seed of PyTorch's generators, set ahead of ``make_model`` and of ``make_step``
    backend      of ``torch.distributed``: ``gloo`` on CPUs, or ``nccl``, where rank r has GPU r
    limit_s      the time in seconds that each training may take, the start of its process included

    Raises NotOneProcessError, an AssertionError whose text says which tensors differ, where and by how much, and the
    likely cause; RankError if a rank raises, hangs or dies; UsageError for functions that others cannot import.
    """
    if world_size < 2:
        raise UsageError(f"same_as_one_process(world_size={world_size})", "give the number of processes, 2 or more")
    train = _Training(make_model, make_step, world_size, steps, seed, backend, limit_s)
    every = tuple(range(world_size))
    one, *wide = train.in_one([_Job(every)] if exact else [_Job(every), _Job(every, torch.float64)])
    ranks = [states[0] for states in train.in_ranks()]
    told = _apart(ranks)
    got = {name: tensor for state in reversed(ranks) for name, tensor in state.items()}
    if exact:
        wanted = {name: tensor.double() for name, tensor in one.items()}
        differing = [name for name in one if name not in got or not same_bits(got[name], one[name])]
        report = compare_all(got, {name: wanted[name] for name in differing}, one, multiple=multiple)
        told += [f"{len(differing)} of {len(one)} tensors are not the bits of one process:"] if differing else []
    else:
        report = compare_all(got, wide[0], one, multiple=multiple)
        differing = [] if report.ok else [tensor.name for tensor in report.tensors if not tensor.ok]
    if not told and not differing:
        return report
    causes, where = _causes(train, ranks, one)
    said = [*(f"likely: {cause.value}" for cause in causes), *where]
    raise NotOneProcessError("\n".join([*said, *told, *_shown(report, differing)]), causes)


@dataclass(frozen=True)
class _Training:
    """A training of one model, and the ways to do it: in ranks, and in one process on any shards."""

    make_model: Callable[[], nn.Module]
    make_step: MakeStep
    world_size: int
    steps: int
    seed: int
    backend: str
    limit_s: float

    def in_ranks(self, *steps: int) -> list[list[State]]:
        """Train in all ranks, each on its own shard, once for each number of steps; return the states of each rank."""
        return self._trained(
            [[_Job((rank,), steps=number) for number in steps or (self.steps,)] for rank in range(self.world_size)]
        )

    def in_one(self, jobs: Sequence[_Job]) -> list[State]:
        """Train in one process, once for each job; return the states."""
        return self._trained([jobs])[0]

    def _trained(self, jobs: Sequence[Sequence[_Job]]) -> list[list[State]]:
        threads = max(1, usable_cores() // self.world_size)  # sums of as many parts in every run
        limit_s = self.limit_s * len(jobs[0])
        return in_ranks(_train_all, len(jobs), self, jobs, backend=self.backend, threads=threads, limit_s=limit_s)


def _train_all(train: _Training, jobs: Sequence[Sequence[_Job]]) -> list[State]:
    """Do this rank's jobs, which are as many in each rank."""
    return [_train(train, job) for job in jobs[torch.distributed.get_rank()]]


def _train(train: _Training, job: _Job) -> State:
    """Train in this process, a rank of a group; return parameters and optimizer state, whole, on the CPU.

    Buffers are left out: statistics such as BatchNorm's are of each rank's own shard.
    """
    torch.manual_seed(train.seed)
    model = train.make_model()
    if job.dtype is not None:
        model = _cast(model, job.dtype)
    torch.manual_seed(train.seed)
    try:
        step = train.make_step(model, job.shards, train.world_size)
        for _ in range(train.steps if job.steps is None else job.steps):
            step.run()
    except Exception as error:
        if job.dtype is not None:
            error.add_note(f"in one process, in {job.dtype}, from which the budget follows; exact=True needs none")
        raise
    found = {name: _whole(parameter) for name, parameter in model.named_parameters()}
    state: Mapping[Any, Mapping[str, Any]] = {} if step.optimizer is None else step.optimizer.state
    for name, parameter in model.named_parameters():
        for key, value in state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                found[f"{name} {key}"] = _whole(value)
    return found


def _cast(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast a model to a floating dtype, and from now on the floating inputs of its forward."""

    def cast(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    def cast_inputs(
        _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(map(cast, args)), {name: cast(value) for name, value in kwargs.items()}

    model.register_forward_pre_hook(cast_inputs, with_kwargs=True)
    return model.to(dtype)


def _whole(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor on the CPU; of one that is sharded over the ranks, the whole."""
    gather = getattr(tensor, "full_tensor", None)  # torch.distributed.tensor.DTensor's
    whole: Tensor = tensor.detach() if gather is None else gather().detach()
    return whole.cpu().clone()


def _shown(report: Report, differing: Sequence[str]) -> list[str]:
    """Return the comparison of the first tensors that differ, and the names of others."""
    told = [str(tensor) for tensor in report.tensors if tensor.name in differing]
    others = differing[_SHOWN:]
    named = format_names(others, _NAMED)
    return [*told[:_SHOWN], *([f"{format_count(len(others), 'more tensor')}: {named}"] if others else [])]


def _apart(ranks: Sequence[State]) -> list[str]:
    """Return a line for each rank whose tensors are not those of the first rank that has them."""
    lines = []
    for rank, state in enumerate(ranks[1:], start=1):
        names = [name for name, tensor in state.items() if name in ranks[0] and not same_bits(tensor, ranks[0][name])]
        if names:
            lines.append(
                f"rank {rank} differs from rank 0 in {len(names)} of {len(state)} tensors, first in {names[0]}"
            )
    return lines


def _causes(train: _Training, ranks: Sequence[State], one: State) -> tuple[list[Cause], list[str]]:
    """Return the mistakes whose result the ranks have, the likeliest first, and where the first step shows them."""
    every = range(train.world_size)
    alone = [_Job((rank,)) for rank in every]
    firsts = [replace(job, steps=1) for job in (*alone, _Job(tuple(every)))]
    same, *found = train.in_one([_Job((0,) * train.world_size), *alone, *firsts])
    own, own_early, one_early = found[: len(alone)], found[len(alone) : -1], found[-1]
    starts, early = zip(*train.in_ranks(0, 1), strict=True)
    apart = _differing(early)
    causes = []
    if _differing(starts):
        causes.append(Cause.OWN_WEIGHTS)
    elif all(_alike(state, alone) for state, alone in zip(ranks, own, strict=True)):
        causes.append(Cause.NOT_EXCHANGED)
    elif all(_alike(state, same) for state in ranks):
        causes.append(Cause.SAME_SHARD)
    elif 0 < len(apart) < len(early[0]):
        causes.append(Cause.LEFT_OUT)
    scale = _factor(*_gradients(ranks[0], one))
    if abs(scale - train.world_size) < _ALIKE * train.world_size:
        causes.append(Cause.SUMMED)
    if abs(scale * train.world_size - 1) < _ALIKE:
        causes.append(Cause.DIVIDED_TWICE)
    where = [f"after one step the ranks differ in {format_names(apart, _NAMED)}"] if Cause.LEFT_OUT in causes else []
    if causes:
        return causes, where
    # Whether the gradients of the first step, by the optimizer's moments, are off by what 16 bits round away.
    got, wanted = _gradients(early[0], one_early)
    off = ((got - wanted).abs() / wanted.abs())[wanted != 0]
    if off.numel() and _NARROW[0] < float(off.median()) < _NARROW[1]:
        return [Cause.NARROW], []
    if all(_alike(state, one_early, _ROUNDING) for state in early):
        return [Cause.LATER], []
    weights, others = (_weights(state, own_early) for state in (early[0], one_early))
    pairs = zip(weights, others, strict=True) if weights is not None and others is not None else ()
    if weights and others and any(abs(a - b) > _UNLIKE * abs(b) for a, b in pairs):
        told = [", ".join(f"{weight:.3g}" for weight in some) for some in (weights, others)]
        return [Cause.WEIGHTED], [f"after one step the gradient is {told[0]} times those of the ranks, not {told[1]}"]
    ours, theirs = _moments(early[0], one_early)
    every_factor = {name: _factor(gradient, theirs[name]) for name, gradient in ours.items()}
    factors = {name: factor for name, factor in every_factor.items() if not math.isnan(factor)}
    odd = [name for name, factor in factors.items() if abs(factor - 1) > _UNLIKE]
    if 0 < len(odd) < len(factors):
        told = [f"{factors[name]:.3g} times that of {name}" for name in odd[:_SHOWN]]
        more = f", of {len(odd)} of {len(factors)} parameters in all" if len(odd) > _SHOWN else ""
        return [Cause.SCALED], [f"after one step the gradient is {', '.join(told)}{more}"]
    return [], []


def _differing(ranks: Sequence[State]) -> list[str]:
    """Return the names of the tensors of which two ranks have different bits."""
    return [
        name
        for name, tensor in ranks[0].items()
        if any(name in state and not same_bits(tensor, state[name]) for state in ranks[1:])
    ]


def _moments(*states: State) -> list[dict[str, Tensor]]:
    """Return the moments that all states have, flat and in float64, by the names of their parameters."""
    names = [name for name in states[0] if name.rpartition(" ")[2] in _MOMENTS and all(name in one for one in states)]
    return [{name.rpartition(" ")[0]: one[name].double().flatten() for name in names} for one in states]


def _gradients(*states: State) -> list[Tensor]:
    """Return the moments that all states have, as one vector a state: empty if they have none in common."""
    return [torch.cat([torch.empty(0, dtype=torch.float64), *one.values()]) for one in _moments(*states)]


def _weights(state: State, ranks: Sequence[State]) -> list[float] | None:
    """Return the factors by which the gradients of the ranks alone add up to those of a state; None if none do."""
    got, *own = _gradients(state, *ranks)
    if not got.numel():
        return None
    basis = torch.stack(own, dim=1)
    found = torch.linalg.lstsq(basis, got[:, None]).solution
    weights: list[float] = found[:, 0].tolist()
    return weights if (basis @ found[:, 0] - got).norm() <= _ALIKE * got.norm() else None


def _factor(got: Tensor, wanted: Tensor) -> float:
    """Return the one factor between two vectors; NaN if there is none."""
    factor = float(got @ wanted / (wanted @ wanted))
    return factor if (got - factor * wanted).norm() <= _ALIKE * got.norm() else math.nan


def _alike(state: State, other: State, share: float = _ALIKE) -> bool:
    """Whether two trainings had the same result, but for ``share`` of each tensor's norm."""
    return state.keys() <= other.keys() and all(
        (tensor.double() - other[name].double()).norm() <= share * other[name].double().norm()
        for name, tensor in state.items()
    )
