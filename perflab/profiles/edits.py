"""Which changes of one module are of one edit: on lines of a file between which nothing else runs as before. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from perflab.profiles.facts import HALF, Change, Key
from perflab.profiles.new_calls import parsed
from perflab.profiles.records import DISPATCH


def edits(changes: Sequence[Change], unchanged: Iterable[str]) -> list[list[Change]]:
    """The changes of each edit.

    Lines that work in no common phase are of two. What has no line belongs to what takes most time in its phase;
    PyTorch's own work always follows from something.

    Args:
        changes: of one module.
        unchanged: lines of the version that is looked at on which something runs, and nothing changed.
    """
    by_spot: dict[str, list[Change]] = defaultdict(list)
    for one in _with_what_replaces(changes):
        by_spot[one.spot].append(one)
    without_line = by_spot.pop("", [])
    between: dict[str, list[int]] = defaultdict(list)
    for file, number in sorted(map(parsed, unchanged)):
        between[file].append(number)
    found: list[list[Change]] = []
    last = ("", 0)
    for spot in sorted(by_spot, key=parsed):
        here, (file, number) = by_spot[spot], parsed(spot)
        lines = between[file]
        is_next = bool(found) and file == last[0] and bisect_right(lines, last[1]) == bisect_right(lines, number)
        if is_next and _phases(found[-1]) & _phases(here):
            found[-1] += here
        else:
            found.append(here)
        last = file, number
    largest_first = sorted(found, key=lambda edit: sum(abs(one.change_ns) for one in edit), reverse=True)
    alone: list[Change] = []
    for one in without_line:
        of_phase = (edit for edit in largest_first if one.key[2] in _phases(edit))
        follows = largest_first[:1] if one.category == DISPATCH else []
        next(of_phase, follows[0] if follows else alone).append(one)
    return [*found, alone] if alone else found


def _with_what_replaces(changes: Sequence[Change]) -> list[Change]:
    """Calls that are gone, from lines where nothing comes, belong where more of the same operator come."""
    come_at = {one.spot for one in changes if one.more > 0}
    by_operator: dict[str, list[Change]] = defaultdict(list)
    for one in changes:
        by_operator[one.key[0]].append(one)
    found: dict[tuple[Key, str], Change] = {}
    for some in by_operator.values():
        to = max(some, key=lambda one: one.more)
        is_replaced = to.more > 0 and sum(one.more for one in some) > -HALF
        for one in sorted(some, key=lambda one: -one.more):
            goes = is_replaced and one.more < 0 and one.spot not in come_at
            place = one.key, to.spot if goes else one.spot
            so_far = found.get(place)
            found[place] = replace(
                so_far or one,
                spot=place[1],
                more=one.more + (so_far.more if so_far else 0.0),
                change_ns=one.change_ns + (so_far.change_ns if so_far else 0.0),
            )
    return list(found.values())


def _phases(edit: Iterable[Change]) -> set[str]:
    return {one.key[2] for one in edit}
