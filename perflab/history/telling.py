"""Turns a history into contents: judges its series, groups changes into events, lists their commits, finds breaks.

A break is a run where a series ends and another begins, since its environment or its case's name changed. A new
environment is another PyTorch, driver or machine. The levels on the two sides of a break are not compared, so nothing
is judged there, but the break is reported. A case counts as renamed if its series ends as a series begins whose
environment, module and parameters are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from perflab import __version__
from perflab.base.identity import file_of, name_in_file, test_of
from perflab.history import contents
from perflab.history.git_objects import clean, commits_between
from perflab.history.judging import FEWEST, Event, Found, creep_of, gather, judge, judge_accepted, without_the_machine
from perflab.history.series import History, Series
from perflab.results.readings import in_one_text
from perflab.tables.lines import distinct_names, short_name

_FIRST = ("latency", "peak")
"""Quantities that are shown before all others."""


def contents_of(history: History, repository: Path) -> contents.Contents:
    """Judge a history, and return its contents. Commits are looked up in the repository."""
    series = history.series
    groups = [place.group for place in history.places]
    if history.are_accepted:
        events = gather(series, groups, judge_accepted(series))
    else:
        found = without_the_machine(judge(series), series, history.machines, judge(history.machines))
        events = gather(series, groups, found)
    parts: dict[int, list[tuple[int, Found]]] = {}
    for number, event in enumerate(events, 1):
        for one in event.members:
            parts.setdefault(one.series, []).append((number, one))
    names = distinct_names(
        {(one.case, one.variant): (one.case, f"{short_name(one.case)} {one.variant}".rstrip()) for one in series}
    )
    used = {place: number for number, place in enumerate(dict.fromkeys(one.place for one in series))}
    is_gone = history.gone()
    rows = [
        _series(
            one,
            names[one.case, one.variant],
            used[one.place],
            parts.get(at, []),
            accepted=history.are_accepted,
            gone=is_gone(one.case),
        )
        for at, one in enumerate(series)
    ]
    all_places = list(history.places)
    places = [all_places[place].parts for place in used]
    often = [places[: at + 1].count(parts) for at, parts in enumerate(places)]  # of equal ones all but the first get it
    environments = [
        parts if nth == 1 else (*parts[:-1], f"{parts[-1]} ({nth})") for parts, nth in zip(places, often, strict=True)
    ]
    return contents.Contents(
        kind=contents.KIND,
        schema=contents.SCHEMA,
        perflab=__version__,
        source=history.source,
        accepted=history.are_accepted,
        runs=[
            contents.RunRow(created=one.created.isoformat(), file=one.file, commit=one.commit) for one in history.runs
        ],
        environments=[in_one_text(parts) for parts in environments],
        words=list(history.words),
        events=[_event(number, one, rows, history, repository) for number, one in enumerate(events, 1)],
        series=rows,
        left_out=history.left_out,
        breaks=[] if history.are_accepted else breaks_in(rows, environments),
        repeated=history.repeated,
        cut_short=sum(run in history.cut_short for run in history.runs),
        repository=history.repository,
    )


def _series(
    one: Series, name: str, environment: int, parts: Sequence[tuple[int, Found]], *, accepted: bool, gone: bool
) -> contents.SeriesRow:
    is_sure = one.is_exact or accepted
    starts = [0, *sorted({found.change.at for _, found in parts}), len(one.values)]
    levels = [
        contents.Level(first=first, last=end - 1, value=one.values[first] if is_sure else median(one.values[first:end]))
        for first, end in pairwise(starts)
        if first < end
    ]
    if one.is_exact:
        ratio = levels[-1].value / levels[0].value if levels[0].value else None
    else:
        known = [found.change.ratio for _, found in parts if found.change.low is not None]
        ratio = _finite(math.prod(known)) if len(known) == len(parts) else None
    return contents.SeriesRow(
        case=one.case,
        variant=one.variant,
        name=name,
        quantity=one.quantity,
        unit=one.unit,
        exact=one.is_exact,
        environment=environment,
        judged=is_sure or len(one.values) >= FEWEST,
        points=len(one.values),
        ratio=ratio,
        difference=levels[-1].value - levels[0].value,
        runs=list(one.runs),
        values=list(one.values),
        words=list(one.words),
        levels=levels,
        events=sorted({number for number, _ in parts}),
        creep=None if accepted else creep_of(one, [found for _, found in parts]),
        gone=gone,
    )


def _event(
    number: int, event: Event, rows: Sequence[contents.SeriesRow], history: History, repository: Path
) -> contents.EventRow:
    undone = {key: by + 1 for key, by in event.undone_by.items()}
    members = [_member(one, rows[one.series], undone, accepted=history.are_accepted) for one in event.members]
    members.sort(key=lambda one: -abs(math.log(one.ratio)) if one.ratio else -math.inf)
    timed = [one for one in members if not rows[one.series].exact]
    ratios = [one.ratio for one in timed or members if one.ratio is not None]
    alarms = {(one.series, one.change.at) for one in event.members if one.is_alarm}
    sure = [one.ratio for one in timed or members if one.ratio is not None and (one.series, one.at) in alarms] or ratios
    machines = [one.machine for one in timed if one.machine is not None]
    rests = [one.rest for one in timed if one.rest is not None]
    last_old, first_new = event.first - 1, event.last
    good, bad = history.runs[last_old].commit, history.runs[first_new].commit
    is_same_code = good is not None and good == bad == clean(good)
    between = commits_between(repository, good, bad) if good and bad else None
    kind = contents.ALARM if event.is_alarm else contents.POSSIBLE
    if history.are_accepted:
        kind = contents.ACCEPTED
    elif event.is_machines or (len(timed) == len(members) and is_same_code):
        kind = contents.MACHINE
    reasons = [why for one in members if (why := history.reasons.get(rows[one.series].words[one.at]))]
    return contents.EventRow(
        number=number,
        kind=kind,
        worse=event.is_worse,
        ratio=median(sure) if sure else None,
        smallest=min(ratios, default=None),
        largest=max(ratios, default=None),
        environments=sorted({rows[one.series].environment for one in members}),
        last_old=last_old,
        first_new=first_new,
        members=members,
        cases=len({(rows[one.series].case, rows[one.series].variant) for one in timed or members}),
        good=good,
        bad=bad,
        commits=between[1] if between else [],
        commits_total=between[0] if between else None,
        undoes=[one + 1 for one in event.came_back],
        undone_by=sorted(set(undone.values())),
        machine_ratio=median(machines) if machines else None,
        rest_ratio=median(rests) if rests else None,
        reasons=list(dict.fromkeys(reasons)),
    )


def _member(
    found: Found, row: contents.SeriesRow, undone: Mapping[tuple[int, int], int], *, accepted: bool
) -> contents.Member:
    change = found.change
    at = next(place for place, level in enumerate(row.levels) if level.first == change.at)
    rest = found.rest if found.rest is not None and math.isfinite(found.rest.high) else None
    return contents.Member(
        series=found.series,
        before=change.before,
        after=change.after,
        at=change.at,
        old=row.levels[at - 1].value,
        new=row.levels[at].value,
        ratio=_finite(change.ratio) if change.low is not None else None,
        difference=row.levels[at].value - row.levels[at - 1].value,
        low=_finite(change.low),
        high=_finite(change.high),
        p=None if accepted or row.exact else change.p,
        machine=found.rest.machine if found.rest is not None else None,
        rest=rest.ratio if rest is not None else None,
        rest_low=rest.low if rest is not None else None,
        rest_high=rest.high if rest is not None else None,
        undone_by=undone.get((found.series, change.at)),
    )


def _finite(ratio: float | None) -> float | None:
    return ratio if ratio is not None and math.isfinite(ratio) else None


def breaks_in(series: Sequence[contents.SeriesRow], environments: Sequence[Sequence[str]]) -> list[contents.BreakRow]:
    """Return the runs from which on a case's quantity is only measured in another environment or under another name.

    The oldest run is first. ``environments`` has the parts of each environment: what its numbers share.
    """
    same: dict[tuple[str, str, str], list[int]] = {}
    for at, one in enumerate(series):
        same.setdefault((one.case, one.variant, one.quantity), []).append(at)
    found: dict[tuple[int, str, str], list[contents.BreakMember]] = {}

    def note(old: int, new: int, before: str, now: str) -> None:
        levels = series[old].levels[-1].value, series[new].levels[0].value
        member = contents.BreakMember(before=old, after=new, old=levels[0], new=levels[1])
        found.setdefault((series[new].runs[0], before, now), []).append(member)

    for ones in same.values():
        for new in ones if len(ones) > 1 else ():
            ended = [old for old in ones if series[old].runs[-1] < series[new].runs[0]]
            if not ended:
                continue
            old = max(ended, key=lambda at: series[at].runs[-1])
            before, now = (environments[series[at].environment] for at in (old, new))
            gone = [one for one in before if one not in now]  # the parts in which the environments differ
            note(old, new, in_one_text(gone), in_one_text([one for one in now if one not in before]))
    for old, new in _renamed(series):
        note(old, new, *(_parts(series[at].case)[1] for at in (old, new)))

    def rank(one: contents.BreakMember) -> int:
        quantity = series[one.before].quantity
        return _FIRST.index(quantity) if quantity in _FIRST else len(_FIRST)

    return [
        contents.BreakRow(run=run, before=before, now=now, members=sorted(members, key=rank))
        for (run, before, now), members in sorted(found.items())
    ]


def _renamed(series: Sequence[contents.SeriesRow]) -> Iterator[tuple[int, int]]:
    """Yield each series that ends, with the series that begins in its place in the next run of the case's module."""
    runs: dict[tuple[int, str], set[int]] = {}
    alike: dict[tuple[int, str, str, str, str], list[int]] = {}
    for at, one in enumerate(series):
        module, _, parameters = _parts(one.case)
        runs.setdefault((one.environment, module), set()).update(one.runs)
        alike.setdefault((one.environment, module, parameters, one.variant, one.quantity), []).append(at)
    for (environment, module, *_), ones in alike.items():
        for last, first in pairwise(sorted(runs[environment, module]) if len(ones) > 1 else ()):
            ended = [at for at in ones if series[at].runs[-1] == last]
            begun = [at for at in ones if series[at].runs[0] == first]
            if len(ended) == len(begun) == 1:  # several cannot be matched
                yield ended[0], begun[0]


def _parts(case: str) -> tuple[str, str, str]:
    """Split a node id into the module, the name within the module, and the parameters."""
    test = test_of(case)
    return file_of(test), name_in_file(test), case[len(test) :]
