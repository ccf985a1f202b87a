"""Finds change points: where a series moved to another level for good, or for a while. Pure.

Each series is searched for its clearest step (``steps.py``), cut at that step, and both parts are searched again. Then
each step is examined once more between its neighbours.

The scores are ratios of likelihoods under assumed priors, so theory does not give their chances: these were found by
simulation. For each length of a series, ``SCORES`` has the scores that 0.8 % and 0.08 % of unchanged series exceed: the
highest of seven kinds of noise (independent, neighbours that correlate by 0.3 and by 0.6, heavy-tailed, with outliers,
drifting, wandering), 30,000 series each. These scores are taken for 1 % and 0.1 %: the difference is left for the
separate search for levels that come and go. ``python -m tests.studies.change_thresholds`` computes the table anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, log

import numpy as np

from perflab.history import steps
from perflab.history.steps import LONGEST, Floats

FALSE_ALARMS = 0.01
"""The largest share of unchanged series in which a change is found."""
SHORTEST = 8
"""The fewest points of a series in which a change is looked for."""
_CERTAIN = 0.95
_TOGETHER = 1_000
"""Series whose likelihoods are in memory at once: 1,000 of 100 points with ten models of noise are 8 MB."""
_WORTH_A_LOOK = 4.5
"""Standard errors by which a stretch must differ from the points around it for its two ends to be examined."""
_CREPT, _FEWEST_CREEPING = log(1.05), 24
_CREPT_ERRORS, _BACK_ERRORS = 8.0, 3.0
"""The least distance of a creep, and the most that it may fall back, in standard errors of a sixth's median."""
_SAME_LEVEL = 0.25
"""Share of a step within which its old level counts as restored.

A level has come back if its distance from the old level is at most this share of the step away from the old level.
"""
SCORES = {
    8: (3.49, 5.07),
    9: (3.56, 5.16),
    10: (3.54, 5.61),
    12: (3.54, 5.46),
    15: (3.57, 5.88),
    20: (3.42, 5.37),
    25: (3.25, 5.30),
    30: (2.97, 4.92),
    40: (2.41, 4.32),
    50: (2.02, 5.36),
    60: (2.05, 4.95),
    75: (2.08, 4.80),
    100: (2.33, 5.10),
    150: (2.44, 6.15),
    200: (2.47, 7.15),
}
"""The scores that 1 % and 0.1 % of unchanged series exceed, by the number of points of a series."""


@dataclass(frozen=True)
class Change:
    """One change of level. Points are counted from 0."""

    before: int
    """Last point that surely has the old level: the cause lies after this point, and not after ``after``."""
    after: int
    """First point that surely has the new level; "surely" means with 95 % certainty."""
    at: int
    """The most likely first point of the new level; before < at <= after."""
    ratio: float
    """New level / old level."""
    low: float | None
    """Lower bound of the ratio's 95 % interval; None, like ``high``, if a level has too few points for an interval."""
    high: float | None
    p: float
    """Chance of so much evidence in an unchanged series of this length, whatever its noise; 0 for exact quantities."""
    back_to: int | None = None
    """Index in the list of the change that this change undoes, by restoring the level before it; None: no change."""


def chance(score: Floats, points: int) -> Floats:
    """Return the chance of so high a score in an unchanged series of ``points`` points; at most 1.

    The logarithm of the chance falls in proportion to the score. Between lengths, scores are interpolated over the
    logarithm of the length. The chance is best known near 1 %; far below 1 % it is extrapolated.
    """
    lengths = np.log(list(SCORES))
    hundredth, thousandth = (
        np.interp(np.log(points), lengths, scores) for scores in zip(*SCORES.values(), strict=True)
    )
    return np.asarray(np.minimum(1.0, 0.01 * 10 ** ((hundredth - score) / (thousandth - hundredth))))


Span = tuple[int, int, int]
"""A part of a series: the series' number, the part's first point, and the point after the part's last one."""


def find_changes(series: Sequence[Sequence[float]]) -> list[list[Change]]:
    """Return the changes of each series, oldest first.

    Values are 0 or more, oldest first; series may be of any lengths. No change is found in a series with fewer than
    ``SHORTEST`` points. ``FALSE_ALARMS`` is the largest ``p`` of a change.
    """
    values = [_logs(one) for one in series]
    cuts: list[list[int]] = [[] for _ in values]
    spans = [(number, 0, len(one)) for number, one in enumerate(values)]
    while spans:
        parts: list[Span] = []
        for span, seen in zip(spans, _look(values, spans), strict=True):
            number, start, end = span
            places = [seen.at] if seen.p <= FALSE_ALARMS else []
            z, *stretch = seen.stretch
            if not places and z >= _WORTH_A_LOOK:
                # A single step badly explains a level that came and went. The stretch was chosen among many, so the
                # ``p`` of both its ends must be at most a tenth.
                ends = ((start, *stretch), (*stretch, end))
                chances = [_between(values[number], *each).p for each in ends]
                places = stretch if max(chances) <= FALSE_ALARMS / 10 else []
            before = steps.LAST if start == 0 else steps.BETWEEN
            after = steps.LAST if end == len(values[number]) else steps.BETWEEN
            if places and places[0] - start >= before and end - places[-1] >= after:
                cuts[number] += places
                parts += [(number, *ends) for ends in pairwise([start, *places, end])]
        spans = parts
    return [_changes(one, sorted(places)) for one, places in zip(values, cuts, strict=True)]


def find_exact_changes(values: Sequence[float]) -> list[Change]:
    """Return the changes of an exact quantity: every point whose value differs from that of the point before."""
    places = [place for place in range(1, len(values)) if values[place] != values[place - 1]]
    changes = []
    for at in places:
        old, new = values[at - 1], values[at]
        ratio = new / old if old else float("inf")
        changes.append(Change(at - 1, at, at, ratio, ratio, ratio, 0.0))
    levels = [float(values[at]) for at in [0, *places]] if values else []
    return _undone(changes, levels, [0.0] * len(changes))


def _logs(values: Sequence[float]) -> Floats:
    """Return the logarithms of the values; a count of 0 is taken as 0.5."""
    plain = np.asarray(values, dtype=np.float64)
    return np.log(np.where(plain > 0.0, plain, 0.5))


def creep(values: Sequence[float], changes: Sequence[Change]) -> float | None:
    """Return the ratio by which a series crept from its first sixth to its last, without its steps; None if it did not.

    A series creeps if the medians of its first and last sixth differ by 5 % or more, and by more than the noise, and
    the medians between them do not fall back. A series with fewer than ``_FEWEST_CREEPING`` points is not examined.
    """
    if len(values) < _FEWEST_CREEPING:
        return None
    logs = _logs(values)
    for change in changes:
        logs[change.at :] -= log(change.ratio)
    sixths = np.array_split(logs, 6)
    levels = np.array([np.median(sixth) for sixth in sixths])
    spread = np.median(np.abs(np.concatenate([sixth - np.median(sixth) for sixth in sixths])))
    error = 1.4826 * spread * np.sqrt(np.pi / 2 * len(sixths) / len(logs))
    rise = levels[-1] - levels[0]
    back = np.max(np.maximum.accumulate(levels * np.sign(rise)) - levels * np.sign(rise))
    is_far = abs(rise) >= max(_CREPT, _CREPT_ERRORS * error)
    return exp(rise) if is_far and back <= _BACK_ERRORS * error else None


@dataclass(frozen=True)
class _Seen:
    """The findings in a span: its clearest step, and the stretch that differs most from the points around it."""

    p: float = 1.0
    at: int = 0
    stretch: tuple[float, int, int] = (0.0, 0, 0)
    """The stretch's distance in standard errors, its first point, and the point after its last one."""


def _look(values: Sequence[Floats], spans: Sequence[Span]) -> list[_Seen]:
    # Windows have at most ``LONGEST`` points; neighbours overlap by half or more.
    by_length: dict[int, list[tuple[int, Span]]] = {}
    tried: Counter[int] = Counter()
    for whole, (number, start, end) in enumerate(spans):
        starts = [*range(max(start, end - LONGEST), start, -LONGEST // 2), start]
        for window in ((number, one, min(end, one + LONGEST)) for one in starts):
            by_length.setdefault(window[2] - window[1], []).append((whole, window))
        tried[whole] = len(starts)
    seen = [_Seen()] * len(spans)
    for length, members in by_length.items():
        for first in range(0, len(members) if length >= SHORTEST else 0, _TOGETHER):
            some = members[first : first + _TOGETHER]
            logs = np.stack([values[number][start:end] for _, (number, start, end) in some])
            (scores, likely), stretches = steps.evidence(logs), steps.clearest_stretches(logs)
            chances = chance(scores, length).tolist()
            for n, (whole, (_, start, _)) in enumerate(some):
                old, (z, begin, end) = seen[whole], stretches[n]
                here = steps.LAST + int(likely[n, steps.LAST : 1 - steps.LAST].argmax())
                p, at = min((old.p, old.at), (chances[n] * tried[whole], start + here))
                seen[whole] = _Seen(p, at, max(old.stretch, (z, start + begin, start + end)))
    return seen


def _changes(values: Floats, cuts: list[int]) -> list[Change]:
    """Return the changes at the cuts, each examined between its neighbours.

    While the least likely cut is no change there, it is dropped, and the others are examined again.
    """
    while cuts:
        ends = [0, *cuts, len(values)]
        found = [_between(values, ends[n], ends[n + 1], ends[n + 2]) for n in range(len(cuts))]
        weakest = max(range(len(cuts)), key=lambda n: found[n].p)
        ends = [0, *(change.at for change in found), len(values)]
        if found[weakest].p <= FALSE_ALARMS and ends == sorted(set(ends)):
            levels = [exp(float(np.median(values[a:b]))) for a, b in pairwise(ends)]
            margins = [log(one.high / one.low) / 2 if one.low and one.high else 0.0 for one in found]
            return _undone(found, levels, margins)
        del cuts[weakest]
    return []


def _between(values: Floats, start: int, cut: int, end: int) -> Change:
    """Return the step near a cut, found in the part from ``start`` to ``end``, in which it is the only step."""
    start = max(start, cut - LONGEST * 3 // 4)
    part = values[start : min(end, start + LONGEST)]
    scores, likely_places = steps.evidence(part[None, :])
    places = (likely_places[0] + steps.sides(part, cut - start)) / 2
    at = int(places.argmax())
    # The places that together are 95 % likely: those whose likelihood is ``least`` or more.
    falling = np.sort(places)[::-1]
    least = falling[int(np.searchsorted(np.cumsum(falling), _CERTAIN * falling.sum()))]
    likely = np.flatnonzero(places >= least)
    mean, sd = steps.size(part, at)
    p = float(chance(scores, len(part))[0])
    is_known = steps.LAST <= at <= len(part) - steps.LAST
    low, high = (exp(mean - 1.96 * sd), exp(mean + 1.96 * sd)) if is_known else (None, None)
    return Change(start + int(likely[0]) - 1, start + int(likely[-1]), start + at, exp(mean), low, high, p)


def _undone(changes: list[Change], levels: list[float], margins: list[float]) -> list[Change]:
    """Return the changes, each with the earlier change that it undoes, if any, in ``back_to``.

    ``levels`` has one more item than ``changes``; ``margins`` are half-widths of intervals of the ratios' logarithms.
    """
    known: list[Change] = []
    for number, change in enumerate(changes):
        now = levels[number + 1]
        back_to = None
        for earlier in range(number - 1, -1, -1):
            old, away = levels[earlier], levels[earlier + 1]
            if min(old, now, away) <= 0:
                same = old == now
            else:
                same = abs(log(now / old)) <= min(margins[number], _SAME_LEVEL * abs(log(away / old)))
            if same:
                back_to = earlier
                break
        known.append(replace(change, back_to=back_to))
    return known
