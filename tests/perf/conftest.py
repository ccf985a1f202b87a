"""What the lab's end-to-end cases are run on: chosen on the command line, built when a case needs it.

Shapes: tokens (B, T) int64 -> logits (B, T, V).
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from perflab.lab.models import MODEL_SIZES, ModelCost, build_model, model_cost, size_config
from perflab.lab.models.memory import Mode
from perflab.lab.train import PRECISIONS, TrainingConfig, TrainingStep, random_tokens
from perflab.plugin.case import Perf

from .growth import Point, growth_lines

VOCAB_SIZE = 10_000
DEFAULT_BATCH_SIZE = 4
CASE_PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class Setup:
    """One end-to-end case: which model, on what shape, in which precision."""

    model_name: str
    batch_size: int
    context_length: int
    precision: str
    device: torch.device

    def declare(self, perf: Perf, mode: Mode) -> None:
        """Skip the case if it does not fit, before anything is built, and say how much work one call is."""
        tokens = self.batch_size * self.context_length
        perf.work(tokens=tokens)
        if self.model_name not in MODEL_SIZES:
            return  # nobody knows what a model of the user's own costs
        cost = self._cost(mode)
        perf.requires(memory_bytes=cost.memory_bytes, flops=cost.flops, precision=self.precision)
        perf.work(flops=cost.flops)

    def model(self) -> nn.Module:
        """The model, with weights from a fixed seed."""
        torch.manual_seed(0)
        name, length = self.model_name, self.context_length
        try:
            return build_model(name, vocab_size=VOCAB_SIZE, context_length=length, device=self.device)
        except (ImportError, TypeError, ValueError) as error:
            pytest.fail(f"--model={name}: {error}", pytrace=False)

    def tokens(self) -> Tensor:
        """A batch of random tokens (B, T)."""
        return random_tokens(self.batch_size, self.context_length, vocab_size=VOCAB_SIZE, device=self.device)

    def training_step(self) -> TrainingStep:
        """A training step of the model on one batch."""
        return TrainingStep(self.model(), self.tokens(), TrainingConfig(precision=self.precision))

    def _cost(self, mode: Mode) -> ModelCost:
        config = size_config(self.model_name, vocab_size=VOCAB_SIZE, context_length=self.context_length)
        return model_cost(
            config,
            batch_size=self.batch_size,
            seq_len=self.context_length,
            mode=mode,
            param_dtype=PRECISIONS[self.precision].weights,
            autocast_dtype=PRECISIONS[self.precision].autocast,
        )


@pytest.fixture
def setup(
    request: pytest.FixtureRequest, device: torch.device, model_name: str, context_length: int, precision: str
) -> Setup:
    """The case's ``Setup``, from its parameters."""
    batch_size = request.config.getoption("--batch-size")
    if "warmup_steps" in request.fixturenames:
        batch_size = 1
    return Setup(model_name, batch_size, context_length, precision, device)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Short contexts first: where time runs out, every kind of case has been measured by then. Compiled kernels last.

    The sort is stable: within a length, the order of the files.
    """
    items.sort(key=lambda item: ("compiled_kernel" in getattr(item, "fixturenames", ()), _context_length(item)))


def _context_length(item: pytest.Item) -> int:
    callspec = getattr(item, "callspec", None)
    length: int = callspec.params.get("context_length", 0) if callspec is not None else 0
    return length


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Spread end-to-end cases over ``--model``, ``--context-length`` and the precisions."""
    if "setup" not in metafunc.fixturenames:
        return
    name = metafunc.config.getoption("--model")
    lengths = _context_lengths(metafunc.config)
    precisions = list(CASE_PRECISIONS)
    if "warmup_steps" in metafunc.fixturenames:  # a study of first steps: the cheapest shape shows it as well
        lengths, precisions = [min(lengths)], ["fp32"]
    batch_size = metafunc.config.getoption("--batch-size")
    suffix = "" if batch_size == DEFAULT_BATCH_SIZE else f"-b{batch_size}"  # another batch is another case
    cases = [(name, length, precision) for length in lengths for precision in precisions]
    metafunc.parametrize(
        ("model_name", "context_length", "precision"), cases, ids=["-".join(map(str, case)) + suffix for case in cases]
    )


def _context_lengths(config: pytest.Config) -> list[int]:
    text: str = config.getoption("--context-length")
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise pytest.UsageError(f"--context-length={text}: wanted lengths such as 128 or 128,256")
    if config.getoption("--batch-size") < 1:
        raise pytest.UsageError(f"--batch-size={config.getoption('--batch-size')}: wanted 1 or more")
    return [int(part) for part in parts]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The study of attention's memory, from what its cases noted on their reports."""
    study: dict[str, list[Point]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) != "call":
                continue
            for name, noted in report.user_properties:
                if name == "attention_memory":
                    impl, tokens, peak, saved = noted
                    study.setdefault(impl, []).append((tokens, peak, saved))
    if study:
        terminalreporter.section("attention memory", sep="=")
        for line in growth_lines(study):
            terminalreporter.write_line(line)
