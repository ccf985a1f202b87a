"""A whole run as text: environments, the table, what it cannot show, the tally. The same wherever it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from perflab.documents import ended_early
from perflab.environment import slug
from perflab.records import Document, Environment, Result, Verdict
from perflab.report.drift import REASON_TO_FILL_IN
from perflab.report.kernels import compilers, kernel_table
from perflab.report.prediction_detail import prediction_detail
from perflab.report.predictions import by_gpu, prediction_head, prediction_table
from perflab.report.side_by_side import side_by_side, side_by_side_lines
from perflab.report.studies import studies
from perflab.report.study_forms import study_lines
from perflab.report.table import Line, short_name, table, tally, wrap_facts
from perflab.units import format_names, format_percent

_ENDINGS = {2: "was interrupted", 3: "broke with an internal error", 4: "could not begin"}


def summary(
    document: Document,
    width: int = 80,
    notes: Sequence[str] = (),
    *,
    accept: str | None = None,
    parameter: str | None = None,
) -> list[Line]:
    """The lines that end a run; ``notes`` stand below the tables. ``accept`` is what to call, if it was not pytest.

    ``parameter`` is set side by side, in place of what each case asks for.
    """
    results = document.results
    found = tiers(results)
    measured, compiled = found.measured, found.compiled
    noisy = _noisy_baselines(results, document.threshold) if document.baselines is not None else []
    texts = [*notes, *noisy]
    return [
        *(Line(text) for fact in document.preface for text in wrap_facts([fact], width)),
        *(Line(text) for facts in environments(document) for text in wrap_facts(facts, width)),
        *(table(measured, width) if measured else []),
        *side_by_side_lines(side_by_side(measured, parameter), width),
        *study_lines(studies(measured, document.findings), width),
        *(line for cases in found.predicted.values() for line in _predicted(document, cases, width)),
        *(Line(text) for text in (wrap_facts(compiled_by(document), width) if compiled else [])),
        *(kernel_table(compiled, width) if compiled else []),
        *(Line(text) for text in texts),
        Line(tally(results) + hint(document, accept) if results else "no perf case ran"),
    ]


@dataclass(frozen=True)
class Tiers:
    """Results by how they are known: each kind has a table of its own, and no comparison mixes them."""

    measured: list[Result]
    """With what came to no number, such as skipped cases."""
    predicted: dict[str, list[Result]]
    """By GPU."""
    compiled: list[Result]


def tiers(results: Sequence[Result]) -> Tiers:
    """The results apart, each kind in its order."""
    return Tiers(
        measured=[result for result in results if result.compiled is None and result.predicted is None],
        predicted=by_gpu(results),
        compiled=[result for result in results if result.compiled is not None],
    )


def _predicted(document: Document, cases: Sequence[Result], width: int) -> list[Line]:
    head = [Line(text) for text in wrap_facts(predicted_by(document, cases), width)]
    return [*head, *prediction_table(cases, width), *(Line(text) for text in the_only_prediction(document, width))]


def the_only_prediction(document: Document, width: int) -> list[str]:
    """All that is known of a predicted case, where it is the run's only one."""
    predicted = [result.predicted for result in document.results if result.predicted is not None]
    return prediction_detail(predicted[0].now, width) if len(predicted) == 1 else []


def predicted_by(document: Document, cases: Sequence[Result]) -> list[str]:
    """Facts of one GPU's predictions, the directory of their baselines (if any) last."""
    gpus = by_gpu(cases)
    folders = [PurePath(document.baselines, f"predicted-{gpu}") for gpu in gpus] if document.baselines else []
    return [*prediction_head(cases), *(f"{folder.as_posix()}/" for folder in folders)]


def environments(document: Document) -> list[list[str]]:
    """Facts of each environment that was measured in, the directory of its baselines (if any) last."""
    found = [result.record.environment for result in document.results if result.record is not None]
    seen: dict[str, Environment] = {slug(environment): environment for environment in found}
    return [
        [
            f"{e.device}: {e.device_name}{f', {e.cores} cores' if e.device == 'cpu' else ''}",
            f"torch {e.torch}",
            *([f"{PurePath(document.baselines, name).as_posix()}/"] if document.baselines is not None else []),
        ]
        for name, e in seen.items()
    ]


def compiled_by(document: Document) -> list[str]:
    """Facts of what compiled the kernels, the directory of their baselines (if any) last."""
    tritons = {result.compiled.now.triton for result in document.results if result.compiled is not None}
    folders = sorted(tritons) if document.baselines is not None else []
    return [
        *compilers(document.results),
        *(f"{PurePath(document.baselines or '', f'triton-{version}').as_posix()}/" for version in folders),
    ]


def hint(document: Document, accept: str | None = None) -> str:
    """What takes the numbers as baselines, where that would change something: pytest's option, or ``accept``."""
    if document.baselines is None:
        return ""
    unsaved = [result.judgement for result in document.results if not result.saved]
    verdicts = {judgement.verdict for judgement in unsaved}
    if verdicts & {Verdict.NEW, Verdict.INCOMPARABLE}:
        return f"   (save: {accept or '--perf-update-new'})"
    worse = [judgement for judgement in unsaved if judgement.verdict is Verdict.REGRESSED]
    if any(drift.decides for judgement in worse for drift in judgement.drift.values()) or _by_turns(document):
        return f"   (accept: --perf-update {REASON_TO_FILL_IN})"
    if verdicts & {Verdict.REGRESSED, Verdict.IMPROVED}:
        return f"   (accept: {accept or '--perf-update'})"
    if Verdict.INCONCLUSIVE in verdicts:
        return "   (settle: --perf-against=COMMIT)"
    return ""


def _by_turns(document: Document) -> bool:
    """Whether a stored number let pass what turns found: saving a new one by itself would not move its anchor."""
    return any(
        result.record is not None
        and result.record.paired is not None
        and result.judgement.verdict is Verdict.REGRESSED
        and "latency" in result.judgement.worse
        for result in document.results
    )


def unseen_failures(document: Document) -> list[str]:
    """What the table does not show of a run that was no success; pytest itself says it where it runs."""
    return [*ending(document), *other_failures(document)]


def ending(document: Document) -> list[str]:
    """How a run ended that did not reach its end."""
    if not ended_early(document):
        return []
    how = _ENDINGS.get(document.exitstatus, "ended early")
    return [f"the run {how} (exit status {document.exitstatus}): cases may be missing"]


def other_failures(document: Document) -> list[str]:
    """What failed beside the results of perf cases."""
    others = document.other_failures
    if others:
        return [f"failed beside the perf cases: {format_names(others)}"]
    if document.exitstatus == 1 and not any(result.failure for result in document.results):
        return ["the run failed (exit status 1), and for none of its perf cases: see pytest's own output"]
    return []


def measured_elsewhere(parts: Sequence[Document], merged: Document) -> list[str]:
    """Cases of which results from another environment were left out of the merged run: one run has one of each."""
    standing = {result.case: result.record.environment for result in merged.results if result.record is not None}
    measured = [result for part in parts for result in part.results if result.record is not None]
    others = {
        result.case: None
        for result in measured
        if result.record is not None
        and result.record.environment != standing.get(result.case, result.record.environment)
    }
    if not others:
        return []
    named = format_names([short_name(case) for case in others])
    return [f"measured in another environment too, by an earlier part that does not count: {named}"]


def findings_left_out(parts: Sequence[Document], merged: Document) -> list[str]:
    """Studies of which each part saw only some of what stands in the merged run."""
    lost = dict.fromkeys(study for part in parts for study in part.findings if study not in merged.findings)
    if not lost:
        return []
    return [f"findings of parts of a study are left out, no part has all of its results: {format_names(list(lost))}"]


def _noisy_baselines(results: Sequence[Result], threshold: float) -> list[str]:
    """What the run could not have seen: cases whose baselines differ by far more than the threshold."""
    limits = {
        result.case: result.judgement.latency.limit - 1.0
        for result in results
        if result.judgement.latency is not None and result.judgement.latency.limit is not None and not result.saved
    }
    noisy = {case: limit for case, limit in limits.items() if limit > 2 * threshold}
    if not noisy:
        return []
    worst = max(noisy, key=lambda case: noisy[case])
    span = f"{format_percent(min(noisy.values()))} to {format_percent(noisy[worst])}"
    return [
        f"{len(noisy)} of {len(limits)} baselines are noisy, and see only changes above {span}",
        f"  (worst: {short_name(worst)}); save them again on a quieter machine: --perf-update",
    ]
