"""Training of the lab in ranks and alone, many variants in one set of processes, for test_parallel.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn

from perflab.lab.models import build_model, load_checkpoint, save_checkpoint
from perflab.lab.parallel import EXCHANGES, Exchange, ShardedUpdate, make_exchange
from perflab.lab.parallel.exchange import IN_PARTS, ONE_BATCH, gradient_of
from perflab.lab.parallel.flat import FlatExchange
from perflab.lab.parallel.tensor import TensorExchange
from perflab.lab.parallel.zero3 import Zero3Exchange
from perflab.lab.train import TrainingConfig, TrainingStep

VOCAB, LENGTH, STEPS, CLIP = 64, 12, 3, 0.1
OF_RANKS = ("shard_optimizer", "bucket_mb")
"""Switches that a process alone has no use for."""
State = dict[str, Tensor]


@dataclass(frozen=True)
class Variant:
    """A training: the model, the switches of its step, and how many sequences each rank has."""

    exchange: str
    model: dict[str, Any] = field(default_factory=dict)
    kind: str = "plain"
    switches: dict[str, Any] = field(default_factory=dict)
    rows: tuple[int, ...] = (2, 2)


def make_model(variant: Variant) -> nn.Module:
    torch.manual_seed(0)
    model = build_model("tiny", **{"num_layers": 2, "vocab_size": VOCAB, **variant.model})
    if "frozen" in variant.kind:
        model.blocks[0].requires_grad_(False)
    if "unused" in variant.kind:
        model.unused = nn.Parameter(torch.ones(3))
    if variant.kind == "used by one":
        model.blocks[1] = UsedByOne(model.blocks[1])
    return model


class UsedByOne(nn.Module):
    """A block with a parameter that the first rank alone uses: alone, every other batch."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.offset = nn.Parameter(torch.ones(3))
        self.calls = 0

    def forward(self, x: Tensor, *others: Any) -> Tensor:
        is_used = distributed.get_rank() == 0 if distributed.is_initialized() else self.calls % 2 == 0
        self.calls += 1
        x = self.block(x, *others)
        return x + self.offset.sum() if is_used else x


def shard(rank: int, rows: int) -> Tensor:
    return torch.randint(VOCAB, (rows, LENGTH), generator=torch.Generator().manual_seed(rank))


def state_of(step: TrainingStep) -> State:
    """Parameters, and AdamW's state of those that this process updates."""
    found: State = {}
    for name, parameter in step.model.named_parameters():
        for key, value in {"": parameter.detach(), **step.adamw.state.get(parameter, {})}.items():
            whole = value if step.exchange is None else step.exchange.whole(parameter, value)
            found[f"{name} {key}".strip()] = whole.clone()
    return found


def in_this_rank(variants: list[Variant]) -> list[State]:
    """Train each variant in this rank, on its own shard."""
    rank, found = distributed.get_rank(), []
    for variant in variants:
        model = make_model(variant)
        if rank:  # what rank 0 has counts
            for parameter in model.parameters():
                parameter.data.add_(1.0)
        config = TrainingConfig(exchange=variant.exchange, learning_rate=1e-2, **variant.switches)
        rank_of_batch = 0 if variant.exchange in ONE_BATCH or variant.kind == "one batch" else rank
        step = TrainingStep(model, shard(rank_of_batch, variant.rows[rank]), config)
        for _ in range(STEPS):
            step()
        found.append(state_of(step))
    return found


def alone(variants: list[Variant]) -> list[State]:
    """Train each variant on the shards of all ranks, one after the other, in this process."""
    found = []
    for variant in variants:
        is_one = variant.exchange in ONE_BATCH or variant.kind == "one batch"
        of_ranks = variant.rows[:1] if is_one else variant.rows
        tokens = torch.cat([shard(rank, rows) for rank, rows in enumerate(of_ranks)])
        switches = {
            name: value for name, value in variant.switches.items() if name not in ("shard_optimizer", "bucket_mb")
        }
        parts = switches.pop("micro_batches", 1) * len(of_ranks) if len(set(of_ranks)) == 1 else 1
        config = TrainingConfig(learning_rate=1e-2, micro_batches=parts, **switches)
        step = TrainingStep(make_model(variant), tokens, config)
        for _ in range(STEPS):
            step()
        found.append(state_of(step))
    return found


def refusals() -> list[str]:
    """What exchanges that divide a model say of models that they cannot divide."""
    said = []
    for name, model in (
        *((name, nn.Linear(4, 4)) for name in IN_PARTS),
        ("tensor", build_model("tiny", num_layers=1, d_ff=64)),
        ("tensor", build_model("tiny", num_layers=1, feed_forward="moe")),
    ):
        try:
            make_exchange(name, model)
        except ValueError as error:
            said.append(str(error))
    return said


def switched(name: str) -> dict[str, Any]:
    """The switches of a name such as "flat, sharded state"."""
    return {"exchange": name.partition(",")[0], "shard_optimizer": "sharded" in name, "learning_rate": 1e-2}


def saved(folder: str, writers: Sequence[str]) -> None:
    """Train for two steps with each exchange, and write a checkpoint of each."""
    rank = distributed.get_rank()
    for name in writers:
        step = TrainingStep(make_model(Variant(name)), shard(rank, 2), TrainingConfig(**switched(name)))
        step()
        step()
        step.forward()  # leaves gathered what no backward pass lets go
        state = step.state()
        if rank == 0:
            save_checkpoint(f"{folder}/{name}.pt", step.model, **state)


def resumed(folder: str, writers: Sequence[str], readers: Sequence[str]) -> list[State]:
    """Go on for a step from each checkpoint with each exchange, on as many shares of four sequences as processes."""
    found = []
    for writer in writers:
        for reader in readers:
            model = make_model(Variant(reader))
            for parameter in model.parameters():
                parameter.data.zero_()
            training = load_checkpoint(f"{folder}/{writer}.pt", model)["training"]
            alone = reader == "none"
            ranks, rank = (1, 0) if alone else (distributed.get_world_size(), distributed.get_rank())
            batch = torch.cat([shard(number, 2) for number in range(2)])
            tokens = batch if reader in ONE_BATCH else batch.chunk(ranks)[rank]
            parts = 2 if alone or reader in ONE_BATCH else 1
            step = TrainingStep(model, tokens, TrainingConfig(micro_batches=parts, **switched(reader)))
            step.resume(training)
            step()
            assert step.steps_done == 3
            found.append(state_of(step))
    return found


# --- exchanges by themselves ----------------------------------------------------------------------------------------


def known_gradient(rank: int, number: int, shape: torch.Size) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 * rank + number))


def means() -> dict[str, list[Tensor | None]]:
    """The gradients that each exchange makes of known ones, of which rank 1 has none for the second parameter."""
    rank, found = distributed.get_rank(), {}
    for name in EXCHANGES:
        if name in ("ddp", *IN_PARTS):
            continue  # their gradients come from a backward pass alone
        model = nn.ParameterList([torch.ones(7), torch.ones(3, 5), torch.ones(2), torch.ones(11), torch.ones(4, 9).t()])
        exchange = make_exchange(name, model, 60 / 2**20)
        exchange.begin(last=True)
        for number, parameter in enumerate(model):
            if number != 2 and (number, rank) != (1, 1):
                parameter.grad = torch.empty_like(parameter)  # of its layout, which may be transposed
                parameter.grad.copy_(known_gradient(rank, number, parameter.shape))
        exchange.finish()
        found[name] = [parameter.grad for parameter in model]
    return found


def weights() -> list[float]:
    """What the loss of each rank counts, which has one more token than the rank before."""
    exchange = make_exchange("naive", nn.Linear(2, 2))
    return [exchange.weight(1 + distributed.get_rank()).item(), exchange.weight(5).item()]


def skipped() -> tuple[int, bool]:
    """Train where one rank's loss is not finite; give the steps skipped, and whether all ranks are alike after it."""
    model = make_model(Variant("flat"))
    rank = distributed.get_rank()
    step = TrainingStep(model, shard(rank, 2), TrainingConfig(exchange="flat", learning_rate=1e-2))
    step()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    loss = step.forward()
    step.backward(loss * (float("nan") if rank == 1 else 1.0))
    step.optimizer()
    return step.skipped_steps, all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


def orders() -> list[tuple[str, ...]]:
    """The collectives of one backward pass, and where among the gradients they start, with buckets of one layer."""
    told: list[str] = []
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)))
    for number, layer in enumerate(model):
        layer.weight.register_post_accumulate_grad_hook(lambda _, number=number: told.append(f"layer {number}"))
    exchange = make_exchange("bucketed", model, 4 * (16 * 16 + 16) / 2**20)
    plain = distributed.all_reduce

    def noted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        told.append(f"all-reduce of {tensor.numel()}")
        return plain(tensor, *args, **kwargs)

    distributed.all_reduce = noted
    try:
        passes = []
        for last in (False, True):
            told.clear()
            exchange.begin(last=last)
            model(torch.ones(2, 16)).sum().backward()
            passes.append(tuple(told))
        exchange.finish()
    finally:
        distributed.all_reduce = plain
    return passes


def by_themselves() -> dict[str, Any]:
    """All that two ranks are asked about exchanges beside training, in one set of processes."""
    return {one.__name__: one() for one in (weights, skipped, orders)}


def in_three() -> tuple[list[str], dict[str, list[Tensor | None]]]:
    """Return what models that cannot be divided are refused with, and the means of known gradients."""
    return refusals(), means()


# --- wrong on purpose -----------------------------------------------------------------------------------------------


class Summed(Exchange):
    """The average is forgotten."""

    def average(self) -> None:
        for parameter in self.parameters:
            distributed.all_reduce(gradient_of(parameter))


class AveragedTwice(Exchange):
    """Divided by the number of ranks where it is an average already."""

    def average(self) -> None:
        for parameter in self.parameters:
            distributed.all_reduce(gradient_of(parameter))
            parameter.grad /= self.world_size**2


class NotExchanged(Exchange):
    """Each rank keeps its own gradient."""

    def average(self) -> None:
        pass


class InBfloat16(Exchange):
    """The sum is made of narrow numbers."""

    def average(self) -> None:
        for parameter in self.parameters:
            narrow = gradient_of(parameter).bfloat16()
            distributed.all_reduce(narrow)
            parameter.grad.copy_(narrow / self.world_size)


class LeftOut(Exchange):
    """The last parameter is not in any bucket."""

    def average(self) -> None:
        for parameter in self.parameters[:-1]:
            distributed.all_reduce(gradient_of(parameter))
            parameter.grad /= self.world_size


class TooEarly(Exchange):
    """Reduced after the first micro-batch already, and the second one added to it."""

    def begin(self, *, last: bool) -> None:
        if last and self.parameters[0].grad is not None:
            for parameter in self.parameters:
                distributed.all_reduce(gradient_of(parameter))
                parameter.grad /= self.world_size

    def average(self) -> None:
        pass


class FiredTwice(Exchange):
    """A parameter that is in two buckets is averaged, and summed once more."""

    def average(self) -> None:
        for number, parameter in enumerate([*self.parameters, self.parameters[0]]):
            distributed.all_reduce(gradient_of(parameter))
            parameter.grad /= self.world_size if number < len(self.parameters) else 1


class Unweighted(Exchange):
    """Each rank's mean counts the same, however many tokens it is of."""

    def average(self) -> None:
        for parameter in self.parameters:
            distributed.all_reduce(gradient_of(parameter))
            parameter.grad /= self.world_size

    def weight(self, num_tokens: int) -> Tensor:
        return torch.ones(())


class ByOwnTokens(Exchange):
    """The sum over tokens is divided by the rank's own number, and by the number of ranks once more."""

    def average(self) -> None:
        for parameter in self.parameters:
            distributed.all_reduce(gradient_of(parameter))
            parameter.grad /= self.world_size

    def weight(self, num_tokens: int) -> Tensor:
        return super().weight(num_tokens) / self.world_size


class UsedByNobody(Exchange):
    """A parameter that nobody used gets a gradient of zeros, by which AdamW decays it."""

    def finish(self) -> None:
        for parameter in self.parameters:
            distributed.all_reduce(gradient_of(parameter))
            parameter.grad /= self.world_size


class OwnWeights(Exchange):
    """Each rank keeps the weights that it was made with."""

    def __init__(self, model: nn.Module, bucket_mb: float = 25.0) -> None:
        before = [parameter.detach().clone() for parameter in model.parameters()]
        super().__init__(model, bucket_mb)
        for parameter, own in zip(model.parameters(), before, strict=True):
            parameter.data.copy_(own)

    def average(self) -> None:
        for parameter in self.parameters:
            distributed.all_reduce(gradient_of(parameter))
            parameter.grad /= self.world_size


class FirstRanks(Exchange):
    """The gradient of rank 0 goes to all."""

    def average(self) -> None:
        for parameter in self.parameters:
            distributed.broadcast(gradient_of(parameter), 0)


class ClippedByOwnNorm(Exchange):
    """Gradients are clipped by the norm that they have in their own rank, and then averaged."""

    def average(self) -> None:
        nn.utils.clip_grad_norm_(self.parameters, CLIP)
        for parameter in self.parameters:
            distributed.all_reduce(gradient_of(parameter))
            parameter.grad /= self.world_size


class StaleParameters(Zero3Exchange):
    """What is gathered is what the parameters were at the start."""

    def __init__(self, model: nn.Module, bucket_mb: float = 25.0) -> None:
        super().__init__(model, bucket_mb)
        for buffer in self._buffers:
            buffer.gather()
            buffer.gather = partial(self._gather_as_at_first, buffer, buffer.gather, buffer._whole.clone())
            buffer.let_go()

    @staticmethod
    @torch.no_grad()
    def _gather_as_at_first(buffer: Any, gather: Callable[[], None], first: Tensor) -> None:
        gather()
        buffer._whole.copy_(first)


class OwnPartOfTheNorm(Zero3Exchange):
    """Each process clips by the norm of its own parts."""

    def clip(self, max_norm: float) -> Tensor:
        return nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)


class GradientOfOwnUnits(TensorExchange):
    """Each process goes on backward with the gradient of its own units alone."""

    def __init__(self, model: nn.Module, bucket_mb: float = 25.0) -> None:
        super().__init__(model, bucket_mb)
        for block in model.blocks:
            block.feed_forward._forward_pre_hooks.clear()


class Stale(FlatExchange):
    """With sharded state: what other ranks have updated never arrives."""


class TwoOwners(FlatExchange):
    """With sharded state: both ranks update the first rank's share, and nobody the second's."""


FAULTS = (
    ClippedByOwnNorm,
    OwnPartOfTheNorm,
    GradientOfOwnUnits,
    StaleParameters,
    Stale,
    TwoOwners,
    Summed,
    AveragedTwice,
    NotExchanged,
    InBfloat16,
    LeftOut,
    TooEarly,
    FiredTwice,
    Unweighted,
    ByOwnTokens,
    UsedByNobody,
    OwnWeights,
    FirstRanks,
)


def variant_of(fault: type[Exchange]) -> Variant:
    """The training that shows a fault."""
    uneven, unused = fault in (Unweighted, ByOwnTokens), fault is UsedByNobody
    switches: dict[str, Any] = {"micro_batches": 2} if fault is TooEarly else {}
    switches |= {"max_grad_norm": CLIP} if fault in (ClippedByOwnNorm, OwnPartOfTheNorm) else {}
    switches |= {"shard_optimizer": True} if fault in (Stale, TwoOwners) else {}
    rows = (2, 4) if uneven else (2, 2)
    kind = "unused" if unused else "one batch" if fault is GradientOfOwnUnits else "plain"
    return Variant(fault.__name__, kind=kind, rows=rows, switches=switches)


def with_faults(variants: list[Variant]) -> list[State]:
    """Train each variant in this rank, with the wrong exchanges registered."""
    EXCHANGES.update({fault.__name__: f"{__name__}:{fault.__name__}" for fault in FAULTS})
    found, plain, send = [], ShardedUpdate.__init__, ShardedUpdate.send

    def by_two(self: ShardedUpdate, parameters: Sequence[nn.Parameter]) -> None:
        plain(self, parameters)
        self.own = self._shares[0]

    for variant in variants:
        ShardedUpdate.send = (lambda self: None) if variant.exchange == "Stale" else send
        ShardedUpdate.__init__ = by_two if variant.exchange == "TwoOwners" else plain
        found += in_this_rank([variant])
    return found


# --- many ranks in one process --------------------------------------------------------------------------------------


def in_worlds(worlds: dict[int, list[str]]) -> dict[str, tuple[bool, State, State]]:
    """Train with these exchanges by the number of ranks, as `simulated` does, one world after the other."""
    found = {world_size: simulated(world_size, exchanges) for world_size, exchanges in worlds.items()}
    return {f"{name} in {size}": one for size, trained in found.items() for name, one in trained.items()}


def simulated(world_size: int, exchanges: list[str]) -> dict[str, tuple[bool, State, State]]:
    """Train in as many ranks as tensors of PyTorch's `LocalTensor` hold, and alone.

    For each exchange: whether all ranks have the same bits, the state of rank 0, and that of one process.
    """
    from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.destroy_process_group()
    one_layer = {"num_layers": 1}  # every operator runs once for each rank
    variants = [
        Variant(name, one_layer, switches={"skip_non_finite": False}, rows=(1,) * world_size) for name in exchanges
    ]
    wanted, found = alone(variants), {}
    distributed.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    # A number that is made from no tensor is one tensor there, which no collective adds up; all have as many tokens.
    Exchange.weight = lambda self, num_tokens: torch.ones(())
    for variant, of_one in zip(variants, wanted, strict=True):
        with LocalTensorMode(world_size) as mode:
            tokens = mode.rank_map(lambda rank: shard(rank, 1))
            switches = {"bucket_mb": 0.02, **variant.switches}
            config = TrainingConfig(exchange=variant.exchange, learning_rate=1e-2, **switches)
            step = TrainingStep(make_model(variant), tokens, config)
            for _ in range(STEPS):
                step()
        held = {}
        for name, parameter in step.model.named_parameters():
            for key, tensor in {"": parameter.detach(), **step.adamw.state[parameter]}.items():
                held[f"{name} {key}".strip()] = (
                    tensor._local_tensors if isinstance(tensor, LocalTensor) else {0: tensor}
                )
        same = all(torch.equal(parts[0], part) for parts in held.values() for part in parts.values())
        found[variant.exchange] = (same, {name: parts[0].clone() for name, parts in held.items()}, of_one)
    return found
