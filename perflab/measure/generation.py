"""Measures a generation of tokens: prefill up to the first token, decode from there, and when each token came.

The phases are timed like any other phases, on CUDA by events. Times between outputs come from the host's clock alone:
the host does not wait for the device at a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from perflab.base.errors import UsageError
from perflab.judging.statistics import SHARES, quantile, quantile_interval
from perflab.measure.calls.workload import Mark, Outputs, Phased
from perflab.measure.clocks import clock
from perflab.measure.clocks.clock import Sample
from perflab.results.measurement import PER_TOKEN, Generation, Statistic, formula_of

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

PREFILL, DECODE = "prefill", "decode"
_HOOK = "call the hook once for each step that produced tokens: hook(), or hook(3) where each sequence got three"


class TokenHook:
    """The hook that ``perf.generation`` passes to the generating function, which calls the hook when tokens have come.

    The hook may stand for a streamer of transformers, which receives the prompt by its first ``put``.
    """

    def __init__(self, batch: int, at_first: Mark) -> None:
        self._batch = batch
        self._at_first = at_first
        self._has_prompt = False
        self._at_ns: list[int] = []
        self._tokens: list[int] = []
        self._began_ns = clock.read_ns()

    def __call__(self, tokens: Any = 1) -> None:
        """Note a step that produced tokens.

        Args:
            tokens: how many each sequence got, or the tokens of the whole batch themselves.

        Raises:
            UsageError: ``tokens`` is no positive number of tokens.
        """
        at_ns = clock.read_ns()
        if not self._at_ns:
            self._at_first()
        self._at_ns.append(at_ns - self._began_ns)
        # The number of tokens that each sequence got, rounded up.
        many = tokens
        if not isinstance(tokens, int):
            size = tokens.numel() if hasattr(tokens, "numel") else len(tokens) if hasattr(tokens, "__len__") else 0
            many = -(-size // self._batch)
        if isinstance(tokens, bool) or many < 1:
            raise UsageError(f"the hook of perf.generation got {tokens!r}", _HOOK)
        self._tokens.append(int(many))

    def put(self, value: Any) -> None:
        """Receive what transformers passes to a streamer: the prompt first, and then each step's tokens."""
        if self._has_prompt:
            self(value)
        self._has_prompt = True

    def end(self) -> None:
        """Do nothing: decode ends when the generating function returns."""

    @property
    def outputs(self) -> Outputs:
        """The outputs that were noted so far."""
        return Outputs(tuple(self._at_ns), tuple(self._tokens), self._batch)


class Generating(Phased):
    """The workload ``generate(hook)``, whose hook separates the phases prefill and decode. A sample is one call."""

    def __init__(self, generate: Callable[[Any], Any], batch: int = 1, setup: Callable[[], Any] | None = None) -> None:
        super().__init__([generate], (PREFILL, DECODE), self._generate)
        self._batch = batch
        self._setup = setup
        self._is_ready = False
        self._outputs: Outputs | None = None

    def make_ready(self, calls: int) -> int:
        """Set up the next call; return how long that took in nanoseconds, 0 without a ``setup``.

        Raises:
            UsageError: ``setup`` returned something.
            Exception: whatever ``setup`` raises.
        """
        began_ns = clock.read_ns()
        if self._setup is not None and calls:
            made = self._setup()
            if made is not None:
                raise UsageError(
                    f"setup of perf.generation(..., setup=...) returned {type(made).__name__}",
                    "let it return None, and change what the generating function uses: that gets the hook alone",
                )
        self._is_ready = bool(calls)
        return clock.read_ns() - began_ns if self._setup is not None else 0

    def most_calls(self, budget_ns: float) -> float:
        """Return 1: each call has its own set-up, and its own first token."""
        return 1.0

    def outputs(self) -> Outputs | None:
        """Return when the last call produced tokens; None before the first call."""
        return self._outputs

    def _generate(self, calls: list[Any], after_phase: Mark) -> Any:
        if not self._is_ready:
            self.make_ready(1)
        self._is_ready = False
        hook = TokenHook(self._batch, after_phase)
        result = calls[0](hook)
        self._outputs = hook.outputs
        if not self._outputs.at_ns:
            raise UsageError("perf.generation: the generating function returned without a call of its hook", _HOOK)
        after_phase()
        return result


def generation_of(
    samples: Sequence[Sample], by_phase: dict[str, dict[str, int]], counted: Outputs | None
) -> Generation | None:
    """Return the statistics of timed calls; None for a workload that generates no tokens.

    Args:
        samples: samples of one call each.
        by_phase: counts of a call's phases, by the phase's name.
        counted: the outputs of a call that was counted.
    """
    calls = [(one, one.outputs, sum(one.outputs.tokens)) for one in samples if one.outputs is not None]
    if not calls or counted is None:
        return None
    per_second = [1e9 * tokens / one.total_ns for one, _, tokens in calls if one.total_ns]
    gaps_ns = sorted(late - early for _, outputs, _ in calls for early, late in pairwise(outputs.at_ns))
    found = {
        "ttft": _median(one.phases_ns[PREFILL] for one, _, _ in calls),
        "tpot": _median(one.phases_ns[DECODE] / (tokens - 1) for one, _, tokens in calls if tokens > 1),
        **{f"itl_{name}": estimate(gaps_ns, share) for name, share in SHARES.items()},
        "tokens/s": _median(counted.batch * one for one in per_second),
        "sequence_tokens/s": _median(per_second),
    }
    later = sum(counted.tokens) - 1
    for name, count in by_phase.get(DECODE, {}).items():
        found[name + PER_TOKEN] = (count / later, None, None) if later else None
    statistics = {
        name: Statistic(value=one[0], low=one[1], high=one[2], formula=formula_of(name) or "")
        for name, one in found.items()
        if one is not None
    }
    return Generation(batch=counted.batch, tokens=[tokens for _, _, tokens in calls], statistics=statistics)


def estimate(ordered: Sequence[float], share: float) -> tuple[float, float, float] | None:
    """Return a quantile with its 95 % interval; None if there are too few values for an interval."""
    interval = quantile_interval(ordered, share) if ordered else None
    return (quantile(ordered, share), *interval) if interval is not None else None


def _median(values: Iterable[float]) -> tuple[float, float | None, float | None] | None:
    """Return a median with its 95 % interval; few values have no interval (None, None), and no values give None."""
    ordered = sorted(values)
    return (estimate(ordered, 0.5) or (median(ordered), None, None)) if ordered else None
