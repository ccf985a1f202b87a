"""Data-parallel training steps, right and wrong on purpose, for test_one_process.py: new processes import them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn

from perflab.correctness import RankStep
from perflab.lab.models import build_model

VOCAB, ROWS, LENGTH = 256, 2, 16


def make_model() -> nn.Module:
    """The lab's smallest model with two layers, and a parameter that is never used."""
    model = build_model("tiny", num_layers=2, vocab_size=VOCAB)
    model.unused = nn.Parameter(torch.ones(3))
    return model


def tokens_of(shard: int) -> Tensor:
    return torch.randint(VOCAB, (ROWS, LENGTH), generator=torch.Generator().manual_seed(shard))


def loss_of(model: nn.Module, shard: int) -> Tensor:
    tokens = tokens_of(shard)
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


Exchange = Callable[[nn.Module], None]


def world() -> int:
    return distributed.get_world_size()


def stepped(model: nn.Module, shards: Sequence[int], num_shards: int, exchange: Exchange) -> RankStep:
    """Plain training on these shards, with this exchange of gradients between backward and update."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def run() -> None:
        for shard in shards:
            (loss_of(model, shard) / len(shards)).backward()
        if world() > 1:
            exchange(model)
        optimizer.step()
        optimizer.zero_grad()

    return RankStep(run, optimizer)


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def average(model: nn.Module) -> None:
    """One all-reduce a parameter."""
    for gradient in gradients(model):
        distributed.all_reduce(gradient)
        gradient /= world()


def naive_step(model: nn.Module, shards: Sequence[int], num_shards: int) -> RankStep:
    return stepped(model, shards, num_shards, average)


def ddp_step(model: nn.Module, shards: Sequence[int], num_shards: int) -> RankStep:
    """PyTorch's DistributedDataParallel, which averages in backward."""
    if world() == 1:
        return stepped(model, shards, num_shards, average)
    wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True, bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def run() -> None:
        (shard,) = shards
        loss_of(wrapped, shard).backward()
        optimizer.step()
        optimizer.zero_grad()

    return RankStep(run, optimizer)


def sharded_step(model: nn.Module, shards: Sequence[int], num_shards: int) -> RankStep:
    """PyTorch's FSDP2, which shards parameters, gradients and optimizer state."""
    if world() > 1:
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return stepped(model, shards, num_shards, lambda model: None)


# --- wrong on purpose -----------------------------------------------------------------------------------------------


def forgotten_average(model: nn.Module) -> None:
    for gradient in gradients(model):
        distributed.all_reduce(gradient)


def nothing_exchanged(model: nn.Module) -> None:
    pass


def in_bfloat16(model: nn.Module) -> None:
    for gradient in gradients(model):
        narrow = gradient.bfloat16()
        distributed.all_reduce(narrow)
        gradient.copy_(narrow / world())


def average_twice(model: nn.Module) -> None:
    average(model)
    for gradient in gradients(model):
        gradient /= world()


def without_the_head(model: nn.Module) -> None:
    average(nn.ModuleList(model.blocks))


def first_ranks(model: nn.Module) -> None:
    for gradient in gradients(model):
        distributed.broadcast(gradient, 0)


def clipped_by_own_norm(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    average(model)


def head_twice(model: nn.Module) -> None:
    """A hook of the tied embedding that fires twice: its gradient is added up once more."""
    average(model)
    distributed.all_reduce(model.embedding.weight.grad)


def unequal_step(model: nn.Module, shards: Sequence[int], num_shards: int, *, by_own_tokens: bool) -> RankStep:
    """Shards of unlike numbers of tokens; ``by_own_tokens``: each rank divides by its own."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    counts = [(ROWS + shard) * (LENGTH - 1) for shard in range(num_shards)]

    def run() -> None:
        for shard in shards:
            generator = torch.Generator().manual_seed(shard)
            tokens = torch.randint(VOCAB, (ROWS + shard, LENGTH), generator=generator)
            logits = model(tokens[:, :-1]).flatten(0, 1)
            summed = F.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="sum")
            is_wrong = by_own_tokens and world() > 1
            (summed / (counts[shard] if is_wrong else sum(counts) / world())).backward()
        if world() > 1:
            average(model)
        optimizer.step()
        optimizer.zero_grad()

    return RankStep(run, optimizer)


def stale_step(model: nn.Module, shards: Sequence[int], num_shards: int) -> RankStep:
    """In ranks each step computes with the parameters that it began with, as if they were not gathered again."""
    right = stepped(model, shards, num_shards, average)
    began = [parameter.detach().clone() for parameter in model.parameters()]

    def run() -> None:
        now = [parameter.detach().clone() for parameter in model.parameters()]
        model.zero_grad()
        for parameter, old in zip(model.parameters(), began, strict=True):
            parameter.data.copy_(old)
        (loss_of(model, shards[0])).backward()
        average(model)
        for parameter, one in zip(model.parameters(), now, strict=True):
            parameter.data.copy_(one)
        assert right.optimizer is not None
        right.optimizer.step()

    return right if world() == 1 else RankStep(run, right.optimizer)


def own_weights_step(model: nn.Module, shards: Sequence[int], num_shards: int) -> RankStep:
    """Each rank draws weights of its own, and nobody sends any."""
    if world() > 1:
        for parameter in model.parameters():
            parameter.data += 0.01 * distributed.get_rank()
    return stepped(model, shards, num_shards, average)


def step_with_fault(fault: Exchange, model: nn.Module, shards: Sequence[int], num_shards: int) -> RankStep:
    """The naive step with another exchange; bound by functools.partial."""
    return stepped(model, shards, num_shards, fault)


def same_batch_step(model: nn.Module, shards: Sequence[int], num_shards: int) -> RankStep:
    """Every rank takes the first shard: a sampler that does not know its rank."""
    return stepped(model, shards if world() == 1 else [0], num_shards, average)


def make_regression() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def regression_step(model: nn.Module, shards: Sequence[int], num_shards: int) -> RankStep:
    """Plain training on floating inputs, with momentum."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def run() -> None:
        for shard in shards:
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(shard))
            (model(x).square().mean() / len(shards)).backward()
        if world() > 1:
            average(model)
        optimizer.step()
        optimizer.zero_grad()

    return RankStep(run, optimizer)


def float32_step(model: nn.Module, shards: Sequence[int], num_shards: int) -> RankStep:
    """Refuses a model in any other dtype."""
    if {p.dtype for p in model.parameters()} != {torch.float32}:
        raise TypeError("float32 alone")
    return regression_step(model, shards, num_shards)
