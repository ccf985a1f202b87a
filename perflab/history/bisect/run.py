"""Runs a bisection: compares the ends of the range, then tries commits by halves, and saves each result.

The case is found by a part of its name, and the range by an event of the case's history. ``.perflab/bisect.json`` keeps
the evidence, so that an interrupted bisection resumes.

The value of an exact quantity decides which side of the step a commit is on. The time of a call is compared with the
good commit in interleaved runs, with half of the step as the threshold. If that comparison is inconclusive, the
bisection stops, since a guess could name a commit that changed nothing. Any other quantity that varies is refused: two
readings of it differ without a change of the code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from perflab.base.data import Data, changed, to_readable_json
from perflab.base.errors import PerflabError, UsageError
from perflab.base.files import write_whole
from perflab.base.git import ask_git, commit_named, run_git, working_tree
from perflab.base.reading import FileKind
from perflab.history.bisect.trials import Bench, UntestableError
from perflab.history.contents import ACCEPTED, ALARM, POSSIBLE, Contents, EventRow, Member
from perflab.history.series import History
from perflab.history.telling import contents_of
from perflab.results.records import Change, Verdict
from perflab.running.config.folder import own_folder
from perflab.tables.beside_text import pair_text, value_text
from perflab.tables.lines import short_name
from perflab.units import format_change, format_count, format_interval, format_names

LATENCY = "latency"
THRESHOLD = 0.02
"""The share by which the ends must differ if no event says how large the step is: as for --perf-against."""
_LEAST_THRESHOLD = 0.003
_SHORT = 7
Side = Literal["good", "bad", "skipped"]
"""Side of a commit. ``good``: the old level; ``bad``: the new level; ``skipped``: the case does not run there."""
SCHEMA = 1
PLACE = Path(".perflab/bisect.json")


class Trial(Data, frozen=True):
    """The result of trying one commit."""

    commit: str
    side: Side
    said: str
    """The evidence, in words."""


class State(Data, frozen=True):
    """One bisection: its question, the levels at its ends, and the commits tried so far."""

    schema: int
    case: str
    quantity: str
    good: str
    bad: str
    options: str
    """Further options for pytest, then the build command. Numbers measured with other options are not reused."""
    old: float | None = None
    """The old level of an exact quantity; None for a time, and until the ends have been compared."""
    new: float | None = None
    ratio: float | None = None
    """New level / old level of a time, as measured at the ends; None for an exact quantity."""
    ends: str = ""
    """The evidence from the ends, in words; empty: the ends have not been compared yet."""
    trials: list[Trial] = []

    @property
    def sides(self) -> dict[str, Side]:
        """The side of each commit that was tried."""
        return {trial.commit: trial.side for trial in self.trials}


class StateError(PerflabError):
    """Raised for a state file that cannot be read."""


_STATES = FileKind(
    content=State,
    schema=SCHEMA,
    wanted="a state of perflab history --bisect",
    check="remove it",
    remedy="remove it: the bisection then starts again",
    error=StateError,
)


def resumed(wanted: State, root: Path) -> State:
    """Return the saved state of this very bisection; ``wanted`` itself if no state, or another one's, is saved.

    Raises:
        StateError: the file is damaged, or cannot be read.
    """
    found = _STATES.read(root / PLACE)
    same = ("case", "quantity", "good", "bad", "options")
    return found if found and all(getattr(found, name) == getattr(wanted, name) for name in same) else wanted


def keep(state: State, root: Path) -> None:
    """Write the state to ``.perflab/bisect.json``.

    Raises:
        OSError: the file cannot be written.
    """
    own_folder(root)
    write_whole(root / PLACE, to_readable_json(state).encode())


def standing(commits: Sequence[str], tried: Mapping[str, Side]) -> tuple[Sequence[str], str | None]:
    """Return where a bisection stands: the commits of which one caused the step, oldest first, and the one to try next.

    The last of the suspects is known to be bad. None: no untried commit is left that could narrow the range.

    ``commits`` are those after the good commit up to the bad commit, oldest first. The last one is bad without being
    in ``tried``.
    """
    last = next((at for at, one in enumerate(commits) if tried.get(one) == "bad"), len(commits) - 1)
    first = next((at + 1 for at in reversed(range(last)) if tried.get(commits[at]) == "good"), 0)
    open_ones = [at for at in range(first, last) if commits[at] not in tried]
    middle = (first + last - 1) / 2
    nearest = commits[min(open_ones, key=lambda at: abs(at - middle))] if open_ones else None
    return commits[first : last + 1], nearest


class _UnclearError(Exception):
    """Raised if the evidence is inconclusive: the step is absent, within the noise, or in the other direction.

    The text of the error is the evidence.
    """


def bisect(bench: Bench, good: str, bad: str, quantity: str, ratio: float | None = None) -> tuple[list[str], bool]:
    """Find the commit that caused the change; return the result in lines, and whether the commit was found.

    ``bench.told`` is called with a line for every commit that is tried.

    Args:
        bench: the case, and how it is run.
        good, bad: the ends of the range of commits to search.
        quantity: the quantity whose step is searched for.
        ratio: new level / old level according to an event; None: unknown.

    Raises:
        UsageError: the range holds no commits, an end of it cannot be tested, or the quantity cannot be bisected.
        StateError: the file of an interrupted bisection is damaged.
    """
    good, bad = _commit(bench.root, good), _commit(bench.root, bad)
    commits = _path(bench.root, good, bad)
    options = " ".join([*bench.options, *bench.build])
    name = bench.case + bench.variant
    begun = State(schema=SCHEMA, case=name, quantity=quantity, good=good, bad=bad, options=options)
    state = resumed(begun, bench.root)
    if state.trials:
        bench.told(f"resumed: {format_count(len(state.trials), 'commit')} of this range had been tried")
    try:
        if not state.ends:
            bench.told(f"comparing the ends: {good[:_SHORT]} and {bad[:_SHORT]}")
            state = _with_ends(bench, state, ratio)
            keep(state, bench.root)
        suspects, commit = standing(commits, state.sides)
        while commit is not None:
            bench.told(f"trying {_named(bench.root, commit)}, about {(len(suspects) - 1).bit_length()} to go")
            trial = _tried(bench, state, commit)
            bench.told(f"  {trial.side}: {trial.said}")
            state = changed(state, trials=[*state.trials, trial])
            keep(state, bench.root)
            suspects, commit = standing(commits, state.sides)
    except _UnclearError as problem:
        return [*_told(bench.root, commits, state), str(problem)], False
    lines = _told(bench.root, commits, state)
    if len(suspects) > 1:
        lines.append(
            f"one of these {len(suspects)} commits caused the change; those before the last could not be tested:"
        )
        return [*lines, *(f"  {_named(bench.root, commit)}" for commit in suspects)], False
    merges = ask_git(bench.root, "rev-list", "--parents", "--max-count=1", suspects[0]) or ""
    lines.append(f"{_named(bench.root, suspects[0])}: this commit caused the change")
    if len(merges.split()) > 2:
        short = suspects[0][:_SHORT]
        lines.append(f"  it is a merge; to go on: --good=$(git merge-base {short}^ {short}^2) --bad={short}^2")
    return lines, True


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
    if LATENCY not in judgement.worse and not is_faster:
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
        if state.quantity == LATENCY:
            return _by_turns(bench, state, commit)
        value, unit = _exact_value(bench, commit, state.quantity)
    except UntestableError as problem:
        return Trial(commit=commit, side="skipped", said=str(problem))
    assert state.old is not None
    assert state.new is not None
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
    if LATENCY in judgement.worse:
        return Trial(commit=commit, side="bad", said=said)
    step = max(state.ratio, 1.0 / state.ratio)
    is_ruled_out = change.high is not None and change.high < step
    # A change may be the step if it is at least half of it, or if the comparison does not rule the step out.
    if change.ratio >= math.sqrt(step) or (judgement.verdict is Verdict.INCONCLUSIVE and not is_ruled_out):
        raise _UnclearError(f"stopped at {commit[:_SHORT]}: within the noise, {said}")
    return Trial(commit=commit, side="good", said=said)


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


def ask(
    case: str,
    source: Callable[[], History],
    ends: tuple[str | None, str | None],
    quantity: str | None,
    *,
    build: Sequence[str],
    options: Sequence[str],
    told: Callable[[str], None],
) -> tuple[list[str], bool]:
    """Bisect the range between the given ends, or else the range of the case's newest event.

    Return the result in lines, and whether the commit that caused the change was found.

    Args:
        case: the case's node id; if an end is missing, a part of the node id.
        source: reads the history; only called if an end is missing.
        ends: the good and the bad commit; None: the end of the event's range.
        quantity: the quantity that changed; None: the event's, or the latency if both ends are given.
        build: the command to run in each worktree before pytest; empty: none.
        options: further options for pytest.
        told: called with messages about the progress.

    Raises:
        RivalError: git has no repository here.
        UsageError: the arguments name nothing that can be bisected.
    """
    root = Path().resolve()
    working_tree(root)
    good, bad = ends
    if good is not None and bad is not None:
        return bisect(Bench(root, case, "", options, build, told), good, bad, quantity or LATENCY)
    contents = contents_of(source(), root)
    name, variant = _case(contents, case)
    event, found = _event(contents, name, variant, quantity)
    if event.good is None or event.bad is None:
        raise UsageError(f"event {event.number} lies between runs that name no commits", "name --good and --bad")
    row = contents.series[found]
    member = next(one for one in event.members if one.series == found)
    told(f"event {event.number}: {row.quantity} of {name}{variant}")
    bench = Bench(root, name, variant, options, build, told)
    return bisect(bench, good or event.good, bad or event.bad, row.quantity, expected_step(member))


def expected_step(member: Member) -> float | None:
    """Return the ratio to expect on an unchanged machine: without the machine's part, if the machine changed too.

    None if that remainder may be in either direction, or is unknown.
    """
    if member.machine is None:
        return member.ratio
    if member.rest is None or member.rest_low is None or member.rest_high is None:
        return None
    return None if member.rest_low <= 1.0 <= member.rest_high else member.rest


def _case(contents: Contents, text: str) -> tuple[str, str]:
    found = list(dict.fromkeys((row.case, row.variant) for row in contents.series if text in row.case + row.variant))
    exact = [one for one in found if text in (one[0], "".join(one))]
    if len(exact) == 1:
        return exact[0]
    if len(found) != 1:
        many = format_names([short_name(one[0]) + one[1] for one in found]) or "none"
        raise UsageError(f"--bisect={text}: its history has {len(found)} such cases ({many})", "name one of them")
    return found[0]


def _event(contents: Contents, case: str, variant: str, quantity: str | None) -> tuple[EventRow, int]:
    """Return the newest event of the case, and the index of the case's series in it.

    Alarms and accepted changes come before possible changes; of equally new events, times before exact quantities.
    """
    series = contents.series
    asked = [one for one in series if (one.case, one.variant) == (case, variant) and one.quantity == quantity]
    if quantity is not None and quantity != LATENCY and asked and not any(one.exact for one in asked):
        raise inexact(quantity)
    ranked: list[tuple[tuple[bool, int, bool], EventRow, int]] = []
    for event in contents.events:
        for one in event.members:
            row = series[one.series]
            is_asked = (row.case, row.variant) == (case, variant) and quantity in (None, row.quantity)
            can_be_tried = row.exact or row.quantity == LATENCY
            if is_asked and can_be_tried and event.kind in (ALARM, ACCEPTED, POSSIBLE):
                rank = (event.kind != POSSIBLE, event.first_new, not row.exact)
                ranked.append((rank, event, one.series))
    if not ranked:
        raise UsageError(f"{case}{variant} has no event in this history", "name a range: --good=COMMIT --bad=COMMIT")
    _, event, found = max(ranked, key=lambda one: one[0])
    return event, found
