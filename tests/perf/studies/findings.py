"""What the studies come to, in words: here end to end, warm-up, compilation and memory of the model. Pure functions.

Each line is derived from the cases of one run, and says which. What was not measured is not spoken of.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from perflab import Record, Replicate, Result
from perflab.units import format_bytes, format_ns, format_percent

from ..growth import STUDY, growth_findings
from .inference_findings import decode_findings, load_findings, switch_findings
from .mixer_findings import mixer_findings
from .precision_findings import precision_findings
from .profile_findings import profile_findings
from .reasoning_findings import STUDY as REASONING
from .reasoning_findings import reasoning_findings
from .recommendation import LEAST_TIME, ladder_findings, number, optimisation_findings, result_parameters

Parameters = Mapping[str, object]


@dataclass(frozen=True)
class Measured:
    """A case that measured something, taken apart."""

    test: str
    """The name of the test, without its parameters."""
    parameters: Parameters
    summary: Replicate
    facts: Mapping[str, object]
    samples_ns: Sequence[float] = ()
    """Of one call each, as they were taken."""
    case: str = ""
    ratios: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    """Its time in multiples of other cases', by their node ids: what turns with them gave, and the 95 % interval."""

    @property
    def peak_bytes(self) -> int | None:
        """Peak memory of one call."""
        return self.summary.memory.peak_bytes if self.summary.memory is not None else None

    def number(self, fact: str) -> float | None:
        """A fact that is a number."""
        return number(self.facts.get(fact))


def measured(results: Iterable[Result]) -> list[Measured]:
    """Those that measured something."""
    return [
        Measured(
            one.case.rpartition("::")[2].partition("[")[0],
            result_parameters(one),
            one.record.summary,
            one.record.facts,
            _samples_ns(one.record),
            one.case,
            {turns.base: (ratio.value, ratio.low, ratio.high) for turns in one.beside if (ratio := turns.call)},
        )
        for one in results
        if one.record is not None and one.record.summary is not None
    ]


def _samples_ns(record: Record) -> list[float]:
    taken = record.measurement
    return [] if taken is None else [span_ns / taken.repetitions for span_ns in taken.samples_ns]


def end_to_end_findings(results: Sequence[Result]) -> list[str]:
    """bf16 against fp32 in each pass, and what the backward costs."""
    cases = measured(results)
    lines = []
    for (test, model), group in _groups(cases, lambda one: (one.test, one.parameters["model_name"])).items():
        by_shape = {(one.parameters["context_length"], one.parameters["precision"]): one for one in group}
        pairs = [
            (length, by_shape[length, "fp32"], one)
            for (length, precision), one in by_shape.items()
            if precision == "bf16" and (length, "fp32") in by_shape
        ]
        if pairs:
            told = ", ".join(f"{length}: {_against(fp32, bf16)}" for length, fp32, bf16 in pairs)
            lines.append(f"{model}, {test.removeprefix('test_')}: bf16 against fp32 by context length: {told}")
    shares = [
        one.summary.phases_ns["backward"] / one.summary.phases_ns["forward"]
        for one in cases
        if {"forward", "backward"} <= one.summary.phases_ns.keys()
    ]
    if shares:
        lines.append(f"a backward takes {_span(shares, '{:.1f}')} times its forward ({len(shares)} cases)")
    return lines


def warmup_findings(results: Sequence[Result]) -> list[str]:
    """What a cold first step costs, and whether so many steps of warm-up were enough."""
    lines = []
    for one in measured(results):
        if len(one.samples_ns) < 2:
            continue
        first_ns, *later_ns = one.samples_ns
        beyond = first_ns / median(later_ns) - 1
        is_cold = beyond > 0.05 and first_ns > max(later_ns)
        lines.append(
            f"after {one.parameters.get('warmup_steps')} steps the first sample is {beyond:+.0%} of the later ones' "
            f"median: {'slower than any of them, so not warm yet' if is_cold else 'one of them'}"
        )
    return lines


def compile_findings(results: Sequence[Result]) -> list[str]:
    """What compilation is worth, and the steps after which it has paid for itself."""
    lines = []
    apart = _groups(measured(results), lambda one: (one.test, one.parameters.get("seq_len")))
    for (_, seq_len), group in apart.items():
        by_how = {one.parameters["how"]: one for one in group}
        eager = by_how.get("eager")
        for how, one in by_how.items():
            if eager is None or how == "eager":
                continue
            at = f" at {seq_len} tokens" if seq_len is not None else ""
            lines.append(f"{how}{at}: {_worth(one)}")
    return lines


def _worth(one: Measured) -> str:
    """Speed in turns, and what it makes of the set-up."""
    setup_ns = one.number("setup_ns") or 0.0
    speed, noise = one.number("speed_ratio"), one.number("speed_noise_share")
    step_ns = one.number("turn_ns") or one.summary.median_ns
    if speed is None or noise is None:
        return f"{format_ns(setup_ns)} of compiling; took no turns with eager that would say what they are worth"
    noise = max(noise, LEAST_TIME)
    told = f"×{speed:.2f} eager's speed, ±{noise:.0%}"
    if speed - 1 <= noise:
        return f"{told}, so {format_ns(setup_ns)} of compiling pay for nothing here"
    steps = setup_ns / (step_ns * (speed - 1))
    return f"{told}, so {format_ns(setup_ns)} of compiling are paid for after {steps:,.0f} steps"


def memory_findings(results: Sequence[Result]) -> list[str]:
    """What a step's peak is made of, what bf16 saves, how it grows, and how good the prediction was."""
    cases = measured(results)
    lines = []
    for (mode, precision), group in _groups(
        cases, lambda one: (one.parameters["mode"], one.parameters["precision"])
    ).items():
        longest = max(group, key=_tokens)
        made_of = _made_of(longest)
        if made_of:
            lines.append(f"{mode} {precision} at {_tokens(longest)} tokens: {made_of}")
        shortest = min(group, key=_tokens)
        first, last = shortest.number("activations_bytes"), longest.number("activations_bytes")
        if first and last and shortest is not longest:
            grown, longer = last / first, _tokens(longest) / _tokens(shortest)
            lines.append(f"  activations grow ×{grown:.1f} while the context grows ×{longer:.1f}")
    off = {
        f"{one.parameters['mode']}-{one.parameters['context_length']}-{one.parameters['precision']}": predicted
        / one.peak_bytes
        - 1
        for one in cases
        if (predicted := one.number("predicted_bytes")) and one.peak_bytes
    }
    if off:
        worst = max(off, key=lambda name: abs(off[name]))
        lines.append(f"predicted peaks are within {abs(off[worst]):.1%} of the measured ones (worst: {worst})")
    return lines


def _made_of(one: Measured) -> str:
    if one.peak_bytes is None:
        return ""
    names = ("parameters", "weight_copies", "gradients", "optimizer", "activations", "logits")
    parts = {name.replace("_", " "): size for name in names if (size := one.number(f"{name}_bytes"))}
    shares = ", ".join(f"{name} {format_percent(size / one.peak_bytes)}" for name, size in parts.items())
    rest = 1 - sum(parts.values()) / one.peak_bytes
    # They need not all be there at the peak's instant: gradients come while activations go.
    passing = f"; {format_percent(rest)} or more is temporary" if rest > 0 else ""
    return f"{shares} of a peak of {format_bytes(one.peak_bytes)}{passing}"


def _tokens(one: Measured) -> int:
    tokens = one.parameters["context_length"]
    assert isinstance(tokens, int)
    return tokens


def _against(base: Measured, other: Measured) -> str:
    speed = "took no turns"
    if base.case in other.ratios:
        slower, low, high = other.ratios[base.case]
        speed = f"×{1 / slower:.2f} ({1 / high:.2f}…{1 / low:.2f}) as fast"
    if not base.peak_bytes or other.peak_bytes is None:
        return speed
    return f"{speed}, peak {other.peak_bytes / base.peak_bytes - 1:+.0%}"


def _span(values: Sequence[float], form: str) -> str:
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def _groups(cases: Iterable[Measured], key: Callable[[Measured], Hashable]) -> dict[tuple[object, ...], list[Measured]]:
    found: dict[tuple[object, ...], list[Measured]] = {}
    for one in cases:
        name = key(one)
        assert isinstance(name, tuple)
        found.setdefault(name, []).append(one)
    return found


FINDINGS: Mapping[str, Callable[[Sequence[Result]], list[str]]] = {
    STUDY: growth_findings,
    "end to end": end_to_end_findings,
    "warm-up": warmup_findings,
    "optimisations": optimisation_findings,
    "ladder": ladder_findings,
    "mixers": mixer_findings,
    "compile: attention": compile_findings,
    "compile: model": compile_findings,
    "memory": memory_findings,
    "where the time goes": profile_findings,
    "decode": decode_findings,
    "inference switches": switch_findings,
    "load": load_findings,
    REASONING: reasoning_findings,
}
"""By title of the study."""


def findings_of(study: str, results: Sequence[Result]) -> list[str] | None:
    """What a study of the lab comes to; None of one that is not the lab's."""
    find = FINDINGS.get(study)
    return find(results) if find is not None else precision_findings(study, results)
