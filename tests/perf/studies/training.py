"""A case of training on real text: what it costs is said first, then it trains, reads the loss, and measures a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import pytest
import torch

import perflab
from perflab import Perf, own_folder
from perflab.instruments import as_out_of_memory, available_bytes, read_ns, synchronize
from perflab.lab.attention.compiling import require_compiler
from perflab.lab.attention.inputs import BackendRefusedError
from perflab.lab.train import (
    PRECISIONS,
    TextLoader,
    TrainingConfig,
    TrainingStep,
    evaluate,
    standard_library_text,
    train,
)
from perflab.lab.train.text import VOCAB_SIZE
from tests.perf.choice import study_model_name
from tests.perf.setup import COMPILE_SECONDS, Setup, measure_step

from .switches import BASELINE, BOTTOM, Switch

LEARNING_RATE = 1e-3
CONTEXT_LENGTH = 128
BATCH_SIZE = 8
EVALUATION_BATCHES = 9
FIRST_CALLS = 3
"""Calls until nothing is set up any more: the first compiles, the second may record CUDA graphs, the third replays."""
LATER_CALLS = 2
TURNS_SECONDS = 2.0
"""Beside the base, at most; longer where so few blocks take longer."""
_paces: dict[str, float] = {}
"""Tokens a second, by the name of a switch, as they stand in the tables."""
_seen_seconds: dict[tuple[str, str], float] = {}
"""By device and by what was compiled; before it was seen, COMPILE_SECONDS."""


def study_setup(config: pytest.Config, device: torch.device) -> Setup:
    """The baseline of the studies: bytes for tokens, fp32, eager."""
    return Setup(
        study_model_name(config, device.type),
        BATCH_SIZE,
        CONTEXT_LENGTH,
        device,
        # Plain PyTorch: a look at the loss makes an optimizer that is not fused wait for the GPU.
        TrainingConfig(learning_rate=LEARNING_RATE, skip_non_finite=False),
        vocab_size=VOCAB_SIZE,
    )


def measure_switch(perf: Perf, switch: Switch, base: Switch, device: torch.device, config: pytest.Config) -> None:
    """Train with the switch turned, note the held-out loss, what the set-up took and the speed beside the base's in
    turns, and measure a step.
    """
    reason = switch.why_not_on(device.type)
    if reason is not None:
        pytest.skip(reason)
    num_steps: int = config.getoption("--train-steps")
    setup = setup_of(switch, config, device)
    # A forward is a third of a step.
    calls = num_steps + EVALUATION_BATCHES / 3 + FIRST_CALLS + 2 * perflab.Comparison.LEAST_CALLS
    compiling_s = compile_seconds(device.type, switch.compiles)
    setup.declare(perf, "train_step", setup_calls=calls, setup_seconds=compiling_s + TURNS_SECONDS)
    text = standard_library_text(own_folder(config.rootpath) / "text")
    batches = _loader(setup, text.train, switch.seed)
    with from_an_empty_cache(switch.compiles is not None, device), skipped_where_refused():
        step = _step_of(setup, next(batches))
        setup_ns, later_ns = set_up(lambda: step(next(batches)), device)
        noted_compilation(device.type, switch.compiles, setup_ns)
        if not setup.is_ours:  # now that a step was seen, it is known what more of them take
            perf.requires(seconds=later_ns / 1e9, setup_calls=calls - FIRST_CALLS - LATER_CALLS)
        train(step, batches, num_steps - FIRST_CALLS - LATER_CALLS)
        held_out = islice(_loader(setup, text.held_out, seed=0), EVALUATION_BATCHES)
        with PRECISIONS[setup.training.precision].applied(device.type):
            loss = evaluate(step.model, held_out)
        perf.note(loss=loss, setup_ns=setup_ns, parameters=sum(weight.numel() for weight in step.model.parameters()))
        perf.note(tokens_per_s=step.tokens.numel() / (later_ns / 1e9))
        if step.skipped_steps:
            perf.note(skipped_steps=step.skipped_steps)
        if base.name not in (BASELINE, BOTTOM):
            perf.note(against=base.name)  # of the speed
        found = note_speed(perf, step, setup_of(base, config, device))
        if found is not None:
            perf.note(tokens_per_s=tokens_per_second(switch.name, base.name, step.tokens.numel(), found, _paces))
        measure_step(perf, step)


def setup_of(switch: Switch, config: pytest.Config, device: torch.device) -> Setup:
    """The studies' set-up with the switch turned; skips where the model cannot be built so."""
    setup = study_setup(config, device)
    if switch.context_length is not None:
        batch_size = max(1, BATCH_SIZE * CONTEXT_LENGTH // switch.context_length)
        setup = setup.resized(batch_size=batch_size, context_length=switch.context_length)
    setup = setup.switched(training=switch.training, changes=switch.model, seed=switch.seed)
    try:
        assert not setup.is_ours or setup.config
    except ValueError as error:  # 25 heads do not divide among two
        pytest.skip(str(error))
    return setup


@contextmanager
def skipped_where_refused() -> Iterator[None]:
    """What a device cannot run, and says so, is skipped with its words: TMA on an older GPU, say."""
    try:
        yield
    except BackendRefusedError as error:
        pytest.skip(str(error))


def tokens_per_second(name: str, base: str, tokens: int, found: perflab.Comparison, paces: dict[str, float]) -> float:
    """The base's rate times the speed beside it, so that rates of one table stand to each other as the speeds do.

    Rates that were read minutes apart differ by what the machine did meanwhile, which is often more than a switch does.

    Args:
        name: of the switch.
        base: of what it was in turns with.
        tokens: of a step.
        found: what the turns said.
        paces: rates by name; the first that is known of a name stays.
    """
    pace = paces.setdefault(base, tokens / (found.candidate_ns / 1e9) * found.ratio)
    return paces.setdefault(name, pace / found.ratio) if name != base else pace


def note_speed(perf: Perf, step: TrainingStep, base: Setup) -> perflab.Comparison | None:
    """The step's speed beside that of the base, both in turns; where both at once do not fit, that is noted."""
    free = available_bytes(base.device)
    if base.is_ours and free is not None and base.cost("train_step").memory_bytes > free:
        perf.note(turns="no room for both")
        return None
    try:
        other = base.training_step(step.tokens)
        for _ in range(FIRST_CALLS):
            other()
        found = perflab.compare(base=other, candidate=step, budget_s=TURNS_SECONDS, device=base.device)
    except Exception as error:
        if as_out_of_memory(error) is None:
            raise
        perf.note(turns="no room for both")
        return None
    note_turns(perf, found)
    return found


def note_turns(perf: Perf, found: perflab.Comparison) -> None:
    """What advice and findings rest on: times the base's speed, and half the width of its 95 % interval as a share."""
    noise = math.sqrt(found.high_ratio / found.low_ratio) - 1
    perf.note(speed_ratio=1 / found.ratio, speed_noise_share=noise, turn_ns=found.candidate_ns)


def set_up(call: Callable[[], object], device: torch.device) -> tuple[int | None, int]:
    """Nanoseconds that the first calls took beyond later ones, to compile, to allocate; and what a later one takes.

    The first is None where it is less than one later call: two readings may differ by that.
    """
    taken = []
    for _ in range(FIRST_CALLS + LATER_CALLS):
        synchronize(device)
        began = read_ns()
        call()
        synchronize(device)
        taken.append(read_ns() - began)
    later_ns = min(taken[FIRST_CALLS:])
    beyond = sum(taken[:FIRST_CALLS]) - FIRST_CALLS * later_ns
    return (beyond if beyond > later_ns else None), later_ns


def compile_seconds(device_type: str, what: str | None) -> float:
    """What compiling that is expected to take: what it took the last time. Nothing where nothing is compiled."""
    if what is None:
        return 0.0
    return _seen_seconds.get((device_type, what), COMPILE_SECONDS[device_type])


def noted_compilation(device_type: str, what: str | None, setup_ns: int | None) -> None:
    """Learn from one that was seen."""
    if what is not None and setup_ns is not None:
        _seen_seconds[device_type, what] = setup_ns / 1e9


@contextmanager
def from_an_empty_cache(compiles: bool, device: torch.device) -> Iterator[None]:
    """Compile from nothing inside, whatever earlier runs left in the compiler's cache on disk.

    What is done once on a machine or in a process is done before: the C++ headers, which are compiled ahead and kept
    elsewhere. Skips where there is no compiler.
    """
    if not compiles:
        yield
        return
    from torch._inductor.utils import fresh_cache

    try:
        require_compiler(device, name="torch.compile", instead="the eager cases")
    except RuntimeError as error:
        pytest.skip(str(error))
    torch.compile(torch.neg)(torch.ones(8, device=device))
    torch._dynamo.reset()
    try:
        with fresh_cache():
            yield
    finally:
        torch._dynamo.reset()  # on CUDA it lets go of graphs, too


def _step_of(setup: Setup, tokens: torch.Tensor) -> TrainingStep:
    """The step; skips where a model of the user's own lacks what a switch asks for."""
    try:
        return setup.training_step(tokens)
    except ValueError as error:
        if setup.is_ours:
            raise
        pytest.skip(str(error))


def _loader(setup: Setup, text: torch.Tensor, seed: int) -> TextLoader:
    return TextLoader(text, batch_size=setup.batch_size, seq_len=setup.context_length, seed=seed, device=setup.device)
