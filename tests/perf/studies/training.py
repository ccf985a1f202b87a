"""A case of training on real text: what it costs is said first, then it trains, reads the loss, and measures a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import pytest
import torch

from perflab.lab.train import (
    PRECISIONS,
    TextLoader,
    TrainingConfig,
    evaluate,
    standard_library_text,
    train,
)
from perflab.lab.train.text import VOCAB_SIZE
from perflab.measure.clock import read_ns
from perflab.measure.devices import synchronize
from perflab.plugin.case import Perf
from perflab.plugin.folder import own_folder
from tests.perf.choice import study_model_name
from tests.perf.setup import Setup, measure_step

from .switches import Switch

LEARNING_RATE = 1e-3
CONTEXT_LENGTH = 128
BATCH_SIZE = 8
EVALUATION_BATCHES = 9
COMPILE_SECONDS = {"cpu": 15.0, "cuda": 40.0}
"""Guess of one compilation of a small model, forward and backward, until one was seen."""
_seen_seconds: dict[str, float] = {}


def study_setup(config: pytest.Config, device: torch.device) -> Setup:
    """The baseline of the studies: bytes for tokens, fp32, eager."""
    return Setup(
        study_model_name(config, device.type),
        BATCH_SIZE,
        CONTEXT_LENGTH,
        device,
        TrainingConfig(learning_rate=LEARNING_RATE),
        vocab_size=VOCAB_SIZE,
    )


def measure_switch(perf: Perf, switch: Switch, device: torch.device, config: pytest.Config) -> None:
    """Train with the switch turned, note the held-out loss and what the set-up took, and measure a step."""
    reason = switch.why_not_on(device.type)
    if reason is not None:
        pytest.skip(reason)
    num_steps: int = config.getoption("--train-steps")
    setup = study_setup(config, device).switched(training=switch.training, changes=switch.model, seed=switch.seed)
    setup.declare(
        perf,
        "train_step",
        setup_calls=num_steps + EVALUATION_BATCHES // 3,  # a forward is a third of a step
        setup_seconds=switch.compiles * compile_seconds(device.type),
    )
    text = standard_library_text(own_folder(config.rootpath) / "text")
    batches = _loader(setup, text.train, switch.seed)
    with from_an_empty_cache(switch.compiles > 0):
        step = setup.training_step(next(batches))
        setup_ns = first_call_beyond_a_later_one(step, device)
        noted_compilation(device.type, switch.compiles, setup_ns)
        train(step, batches, num_steps)
        held_out = islice(_loader(setup, text.held_out, seed=0), EVALUATION_BATCHES)
        with PRECISIONS[setup.training.precision].applied(device.type):
            loss = evaluate(step.model, held_out)
        perf.note(loss=loss, setup_ns=setup_ns, skipped_steps=step.skipped_steps)
        measure_step(perf, step)


def first_call_beyond_a_later_one(call: Callable[[], object], device: torch.device) -> int:
    """Nanoseconds: what the first call took to compile, to allocate, to choose kernels. Calls twice."""
    taken = []
    for _ in range(2):
        synchronize(device)
        began = read_ns()
        call()
        synchronize(device)
        taken.append(read_ns() - began)
    return max(0, taken[0] - taken[1])


def compile_seconds(device_type: str) -> float:
    """What one compilation is expected to take: what the last one took."""
    return _seen_seconds.get(device_type, COMPILE_SECONDS[device_type])


def noted_compilation(device_type: str, compiles: int, setup_ns: int) -> None:
    """Learn from one that was seen."""
    if compiles:
        _seen_seconds[device_type] = setup_ns / 1e9 / compiles


@contextmanager
def from_an_empty_cache(compiles: bool) -> Iterator[None]:
    """Compile from nothing inside, whatever earlier runs left in the compiler's cache on disk.

    What is done once on a machine is done before: the C++ headers, which are compiled ahead and kept elsewhere.
    """
    if not compiles:
        yield
        return
    from torch._inductor.utils import fresh_cache

    torch.compile(torch.neg)(torch.ones(8))
    torch._dynamo.reset()
    with fresh_cache():
        yield
    torch._dynamo.reset()


def _loader(setup: Setup, text: torch.Tensor, seed: int) -> TextLoader:
    return TextLoader(text, batch_size=setup.batch_size, seq_len=setup.context_length, seed=seed, device=setup.device)
