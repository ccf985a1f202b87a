"""Training steps of processes that train together, each on its own batch: every exchange of gradients of the lab.

The time is the slowest process's; memory is the hungriest one's. Collectives and their bytes are exact, and gated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor

from perflab import Perf
from perflab.lab.parallel import EXCHANGES
from perflab.lab.parallel.exchange import ONE_BATCH
from perflab.lab.train import TrainingConfig, TrainingStep, random_tokens

from .choice import context_lengths, model_names
from .setup import Setup, phases_of

pytestmark = pytest.mark.perf(
    study="data-parallel training",
    columns="mean, forward, backward, optimizer, tokens/s, collectives, collective_bytes, peak, parameter_bytes, "
    "gradient_bytes, state_bytes",
)
BATCH_SIZE = 2
"""Sequences of each process."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make the first model and length that the options name parameters of each case: other ones are other cases."""
    shape = (model_names(metafunc.config)[0], context_lengths(metafunc.config)[0])
    metafunc.parametrize(("model_name", "context_length"), [shape], ids=["-".join(map(str, shape))])


@pytest.fixture
def shape(model_name: str, context_length: int) -> tuple[str, int]:
    """The model and the number of tokens of each sequence."""
    return model_name, context_length


def measure(perf: Perf, shape: tuple[str, int], device: torch.device, training: TrainingConfig) -> None:
    """Measure a step of a model on sequences of a length."""
    model_name, length = shape
    setup = Setup(model_name, BATCH_SIZE, length, device, training)
    setup.declare(perf, "train_step")
    world_size = distributed.get_world_size()
    is_one_batch = training.exchange in ONE_BATCH
    perf.work(tokens=BATCH_SIZE * length * (1 if is_one_batch else world_size))
    perf.note(world_size=world_size, exchange=training.exchange)
    seed = 0 if is_one_batch else distributed.get_rank()
    tokens = random_tokens(BATCH_SIZE, length, vocab_size=setup.vocab_size, device=device, seed=seed)

    def build(**_: int) -> dict[str, Callable[..., object]]:
        return phases_of(TrainingStep(setup.model(), tokens, training))

    perf.fits(build, sizes={"world_size": world_size})
    step = TrainingStep(setup.model(), tokens, training)
    perf.step(**phases_of(step))
    if not perf.predicts:
        perf.note(**kept_bytes(step))


def kept_bytes(step: TrainingStep) -> dict[str, int]:
    """Take a step; return the bytes of this process's parameters, gradients (as AdamW begins) and AdamW's state."""

    def size(tensors: Iterable[Tensor | None]) -> int:
        own = [one.to_local() if isinstance(one, DTensor) else one for one in tensors if one is not None]
        return sum(one.nbytes for one in own)

    sizes = {}

    def look(*_: object) -> None:
        sizes["gradient_bytes"] = size(one.grad for one in step.model.parameters())

    hook = step.adamw.register_step_pre_hook(look)
    step()
    hook.remove()
    sizes["parameter_bytes"] = size(step.model.parameters())
    sizes["state_bytes"] = size(one for state in step.adamw.state.values() for one in state.values())
    return sizes


@pytest.mark.perf(world_size=[2], versus="exchange=none")
@pytest.mark.parametrize("exchange", ["none", *EXCHANGES])
def test_step(
    perf: Perf,
    process_group: distributed.ProcessGroup,
    device: torch.device,
    shape: tuple[str, int],
    exchange: str,
) -> None:
    """``none``: the same two processes without any exchange, which is what the exchange costs nothing of."""
    measure(perf, shape, device, TrainingConfig(exchange=exchange, bucket_mb=1.0))


@pytest.mark.perf(world_size=[4])
@pytest.mark.parametrize("exchange", ["bucketed", "ddp"])
def test_step_of_four(
    perf: Perf,
    process_group: distributed.ProcessGroup,
    device: torch.device,
    shape: tuple[str, int],
    exchange: str,
) -> None:
    measure(perf, shape, device, TrainingConfig(exchange=exchange, bucket_mb=1.0))


@pytest.mark.perf(world_size=[2])
def test_step_with_sharded_state(
    perf: Perf, process_group: distributed.ProcessGroup, device: torch.device, shape: tuple[str, int]
) -> None:
    """AdamW's state in one process only: less memory, one more message for each process."""
    measure(perf, shape, device, TrainingConfig(exchange="bucketed", bucket_mb=1.0, shard_optimizer=True))


@pytest.mark.perf(world_size=[2])
def test_accumulated_step(
    perf: Perf, process_group: distributed.ProcessGroup, device: torch.device, shape: tuple[str, int]
) -> None:
    """Two micro-batches: as many messages as one."""
    measure(perf, shape, device, TrainingConfig(exchange="bucketed", bucket_mb=1.0, micro_batches=2))
