"""Runs a bisection: compares the ends of the range, then tries commits by halves, and saves each result.

The value of an exact quantity decides which side of the step a commit is on. The time of a call is compared with the
good commit in interleaved runs, with half of the step as the threshold. If that comparison is inconclusive, the
bisection stops, since a guess could name a commit that changed nothing. Any other quantity that varies is refused: two
readings of it differ without a change of the code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perflab.base.data import changed
from perflab.base.errors import UsageError
from perflab.base.git import ask_git, commit_named, run_git
from perflab.history.bisect.state import SCHEMA, Side, Standing, State, Trial, keep, resumed, standing
from perflab.history.bisect.trials import Bench, UntestableError
from perflab.history.wording import pair_text, value_text
from perflab.results.records import Change, Judgement, Verdict
from perflab.units import format_change, format_count, format_interval

LATENCY = "latency"
THRESHOLD = 0.02
"""The share by which the ends must differ if no event says how large the step is: as for --perf-against."""
_LEAST_THRESHOLD = 0.003
_SHORT = 7


@dataclass(frozen=True)
class Range:
    """The range of commits to search, and the quantity whose step is searched for."""

    good: str
    bad: str
    quantity: str
    ratio: float | None = None
    """New level / old level according to an event; None: unknown."""


@dataclass(frozen=True)
class Answer:
    """The result of a bisection."""

    lines: list[str]
    is_found: bool


class _UnclearError(Exception):
    """Raised if the evidence is inconclusive: the step is absent, within the noise, or in the other direction.

    The text of the error is the evidence.
    """


def bisect(bench: Bench, searched: Range, told: Callable[[str], None]) -> Answer:
    """Find the commit that caused the change; ``told`` is called with a line for every commit that is tried.

    Raises:
        UsageError: the range holds no commits, an end of it cannot be tested, or the quantity cannot be bisected.
        StateError: the file of an interrupted bisection is damaged.
    """
    good, bad = _commit(bench.root, searched.good), _commit(bench.root, searched.bad)
    commits = _path(bench.root, good, bad)
    options = " ".join([*bench.options, *bench.build])
    name = bench.case + bench.variant
    begun = State(schema=SCHEMA, case=name, quantity=searched.quantity, good=good, bad=bad, options=options)
    state = resumed(begun, bench.root)
    if state.trials:
        told(f"resumed: {format_count(len(state.trials), 'commit')} of this range had been tried")
    try:
        if not state.ends:
            told(f"comparing the ends: {good[:_SHORT]} and {bad[:_SHORT]}")
            state = _with_ends(bench, state, searched.ratio)
            keep(state, bench.root)
        while (where := _standing(commits, state)).next is not None:
            told(f"trying {_named(bench.root, where.next)}, about {(len(where.suspects) - 1).bit_length()} to go")
            trial = _tried(bench, state, where.next)
            told(f"  {trial.side}: {trial.said}")
            state = changed(state, trials=[*state.trials, trial])
            keep(state, bench.root)
    except _UnclearError as problem:
        return Answer([*_told(bench.root, commits, state), str(problem)], is_found=False)
    return _answer(bench.root, commits, state)


def _with_ends(bench: Bench, state: State, expected: float | None) -> State:
    """Return the state with the levels that the ends of the range show.

    Raises:
        UsageError: an end of the range cannot be tested.
        _UnclearError: the ends do not differ beyond the noise, or differ in the other direction.
    """
    try:
        if state.quantity != LATENCY:
            old, unit = _exact_value(bench, state.good, state.quantity)
            new, _ = _exact_value(bench, state.bad, state.quantity)
            if old == new:
                raise _UnclearError(f"stopped: {state.quantity} is {value_text(old, unit)} at both ends of the range")
            return changed(state, old=old, new=new, ends=f"{state.quantity} {pair_text(old, new, unit)}")
        threshold = THRESHOLD if expected is None else min(THRESHOLD, _half(expected))
        judgement, change = bench.compare(state.bad, state.good, threshold)
    except UntestableError as problem:
        raise UsageError(
            f"an end of the range cannot be tested: {problem}", "name other ends: --good=COMMIT --bad=COMMIT"
        ) from None
    is_faster = change.is_faster and change.high is not None and change.high < 1.0
    found = f"between the ends of the range this machine finds {_said(change)}"
    if not _is_slower(judgement) and not is_faster:
        raise _UnclearError(f"stopped: the change is within the noise: {found}")
    if expected is not None and (expected > 1.0) != (change.ratio > 1.0):
        raise _UnclearError(f"stopped: the event is a change of {format_change(expected)}, but {found}")
    return changed(state, ratio=change.ratio, ends=f"latency {_said(change)}")


def _tried(bench: Bench, state: State, commit: str) -> Trial:
    """Try a commit, and return which side of the step it is on; ``skipped`` if the case does not run there.

    Raises:
        _UnclearError: the comparison is inconclusive.
    """
    try:
        if state.quantity != LATENCY:
            return _by_value(bench, state, commit)
        return _by_turns(bench, state, commit)
    except UntestableError as problem:
        return Trial(commit=commit, side="skipped", said=str(problem))


def _by_value(bench: Bench, state: State, commit: str) -> Trial:
    assert state.old is not None
    assert state.new is not None
    value, unit = _exact_value(bench, commit, state.quantity)
    side: Side = "bad" if abs(value - state.new) < abs(value - state.old) else "good"
    return Trial(commit=commit, side=side, said=f"{state.quantity} {value_text(value, unit)}")


def _exact_value(bench: Bench, commit: str, quantity: str) -> tuple[float, str]:
    """Return the value of a quantity at a commit, with its unit.

    Raises:
        UntestableError: the case does not run at the commit.
        UsageError: the quantity is not exact, so a single reading of it proves nothing.
    """
    found = bench.value(commit, quantity)
    if not found.is_exact:
        raise inexact(quantity)
    return found.value, found.unit


def inexact(quantity: str) -> UsageError:
    """Return the error for a quantity whose readings differ although the code did not change."""
    return UsageError(
        f"--quantity={quantity}: its readings differ without a change of the code",
        f"bisect {LATENCY}, which is compared A/B, or an exact quantity: a count, peak",
    )


def _by_turns(bench: Bench, state: State, commit: str) -> Trial:
    assert state.ratio is not None
    is_slowdown = state.ratio > 1.0
    # The judgement says whether the head is slower. Of a speed-up, the old side is therefore the head.
    head, base = (commit, state.good) if is_slowdown else (state.good, commit)
    judgement, change = bench.compare(head, base, _half(state.ratio))
    said = _said(change) if is_slowdown else f"{state.good[:_SHORT]} is {_said(change)} against it"
    if _is_slower(judgement):
        return Trial(commit=commit, side="bad", said=said)
    if _is_unclear(judgement, change, max(state.ratio, 1.0 / state.ratio)):
        raise _UnclearError(f"stopped at {commit[:_SHORT]}: within the noise, {said}")
    return Trial(commit=commit, side="good", said=said)


def _is_slower(judgement: Judgement) -> bool:
    return LATENCY in judgement.worse


def _is_unclear(judgement: Judgement, change: Change, step: float) -> bool:
    """Whether a change may be the step.

    It may be if it is at least half of the step, or if the comparison is inconclusive and does not rule the step out.
    """
    if change.ratio >= math.sqrt(step):
        return True
    return judgement.verdict is Verdict.INCONCLUSIVE and not (change.high is not None and change.high < step)


def _half(ratio: float) -> float:
    """Return the threshold in the middle of a step, as a share; at least ``_LEAST_THRESHOLD``."""
    return max(_LEAST_THRESHOLD, math.exp(abs(math.log(ratio)) / 2.0) - 1.0)


def _said(change: Change) -> str:
    if change.low is None or change.high is None:
        return format_change(change.ratio)
    return f"{format_change(change.ratio)} ({format_interval(change.low, change.high)})"


# --- the range ----------------------------------------------------------------------------------------------


def _commit(root: Path, name: str) -> str:
    found = commit_named(root, name.partition("+")[0])
    if found is None:
        raise UsageError(f"{name} is not a commit of this repository", "fetch it, or name another: --good and --bad")
    return found


def _path(root: Path, good: str, bad: str) -> list[str]:
    """Return the commits after ``good`` up to ``bad``, oldest first; a merge stands for the commits that it merged.

    Raises:
        UsageError: ``good`` is no ancestor of ``bad``, or no commit lies between them.
    """
    if ask_git(root, "merge-base", "--is-ancestor", good, bad) is None:
        raise UsageError(
            f"{good[:_SHORT]} is not an ancestor of {bad[:_SHORT]}",
            "name a good commit that is an ancestor of the bad one",
        )
    commits = run_git(root, "rev-list", "--reverse", "--first-parent", "--ancestry-path", f"{good}..{bad}").split()
    if not commits or commits[-1] != bad:
        raise UsageError(f"no commit lies between {good[:_SHORT]} and {bad[:_SHORT]}", "name a wider range")
    return commits


def _standing(commits: Sequence[str], state: State) -> Standing:
    return standing(commits, {trial.commit: trial.side for trial in state.trials})


def _answer(root: Path, commits: Sequence[str], state: State) -> Answer:
    suspects = _standing(commits, state).suspects
    lines = _told(root, commits, state)
    if len(suspects) == 1:
        merges = ask_git(root, "rev-list", "--parents", "--max-count=1", suspects[0]) or ""
        lines.append(f"{_named(root, suspects[0])}: this commit caused the change")
        if len(merges.split()) > 2:
            short = suspects[0][:_SHORT]
            lines.append(f"  it is a merge; to go on: --good=$(git merge-base {short}^ {short}^2) --bad={short}^2")
        return Answer(lines, is_found=True)
    lines.append(f"one of these {len(suspects)} commits caused the change; those before the last could not be tested:")
    lines += [f"  {_named(root, commit)}" for commit in suspects]
    return Answer(lines, is_found=False)


def _told(root: Path, commits: Sequence[str], state: State) -> list[str]:
    """Return a line with the question of a bisection, then the evidence so far, oldest commit first."""
    head = f"{state.quantity} of {state.case}: {state.good[:_SHORT]}..{state.bad[:_SHORT]}"
    lines = [f"{head} ({format_count(len(commits), 'commit')}){': ' if state.ends else ''}{state.ends}"]
    by_commit = {trial.commit: trial for trial in state.trials}
    for commit in commits:
        if commit in by_commit:
            trial = by_commit[commit]
            lines.append(f"  {trial.side:<8}{_named(root, commit)}: {trial.said}")
    return lines


def _named(root: Path, commit: str) -> str:
    subject = ask_git(root, "log", "--max-count=1", "--format=%s", commit)
    return f"{commit[:_SHORT]} {subject}" if subject else commit[:_SHORT]
