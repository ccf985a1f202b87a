"""Groups facts of the code into parts of an explanation, each with a name, a line and a time. Pure.

Changes of one module belong to one edit if they are on lines of one file between which no unchanged line runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from perflab.base.data import changed
from perflab.base.grouping import groups_of
from perflab.measure.counts.events import kind_of
from perflab.profiles.facts import HALF, Change, Key, Total, is_whole, parsed
from perflab.profiles.wholes import Again, Layers
from perflab.results.profile import (
    BACKWARD,
    DISPATCH,
    ON_HOST,
    OPTIMIZER,
    UNNAMED,
    VARY,
    CudaCall,
    OnLine,
    Part,
    Profile,
)

_NO_PHASE = "no phase"
_ADDS_UP = "aten::add_"
"""The operator that adds a gradient to the one that is there."""


def parts_of(
    facts: Sequence[Change], wholes: Sequence[Again | Layers], now: Mapping[Key, Total], called: Mapping[str, str]
) -> list[Part]:
    """Return one part for each edit of a module, and one for all modules that changed as a whole in the same way.

    ``wholes`` are the modules that are computed again, or that run more or less often; ``now`` has the totals of the
    profile that is explained; ``called`` has the line that calls each module.
    """
    # If operators of the optimizer are no longer called, of which up to two are named, facts without module and phase
    # get the phase of the optimizer, whose work they do now.
    names = {key[0] for key in now}
    all_gone = (one for one in facts if one.category == OPTIMIZER and one.key[0] not in names and not one.within)
    gone = list(dict.fromkeys(one.key[0] for one in sorted(all_gone, key=lambda one: one.change_ns)))[:2]
    if gone:
        facts = [replace(one, key=(one.key[0], "", OPTIMIZER)) if one.key[1:] == ("", "") else one for one in facts]
    together = {module: one for one in wholes for module in one.modules}
    groups = groups_of(facts, lambda fact: together.get(fact.key[1], fact.key[1]))
    working = (total for key, total in now.items() if key[0] not in UNNAMED)
    unchanged = {line for total in working for _, line in total.calls} - {one.spot for one in facts}
    parts = []
    for of, changes in groups.items():
        if isinstance(of, str):
            parts += [_part(edit) for edit in edits(changes, unchanged)]
            continue
        name = "" if isinstance(of, Again) and of.phase == BACKWARD else of.outermost[0]
        whole = changed(
            _part([replace(one, spot="") for one in changes]),
            module=of.outermost[0],
            other_modules=list(of.outermost[1:]),
            called=called.get(name, ""),
        )
        if isinstance(of, Again):
            parts.append(changed(whole, again=of.times, left_out=list(of.left_out)))
        else:
            parts.append(changed(whole, layers=[of.before, of.now]))
    if gone:
        does_its_work = [part.phases == [OPTIMIZER] and part.more > 0 for part in parts]
        parts = [changed(one, instead_of=gone if does else []) for one, does in zip(parts, does_its_work, strict=True)]
    return sorted(parts, key=first_told)


def first_told(part: Part) -> tuple[bool, bool, bool, bool, bool, float, str]:
    """Return a sort key that puts the most likely causes first.

    Dispatch alone, such as views, is no likely cause: it follows from the work done with the views. Neither are calls
    that are gone, nor gradients that are added up, which follow from gradients that are kept or from further work.
    Whole modules come before other parts, since other changes follow from them.
    """
    return (
        part.category == DISPATCH,
        part.more < 0,
        part.operator == _ADDS_UP and part.phases == [BACKWARD] and not part.others,
        not part.again and not part.layers,
        not part.line and not part.module,
        -part.change_ns,
        part.module,
    )


def edits(changes: Sequence[Change], unchanged: Iterable[str]) -> list[list[Change]]:
    """Group the changes of one module by edit.

    Lines without a common phase belong to two edits. A change without a line belongs to the edit with most time that
    has the change's phase. PyTorch's own work follows from other work: without such an edit, it belongs to the edit
    with most time. Other changes without such an edit are an edit of their own.

    ``unchanged`` are the lines of the current version on which something runs and nothing changed.
    """
    by_spot = groups_of(_with_what_replaces(changes), lambda one: one.spot)
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
    """Move calls that are gone, from lines without new calls, to the line with the most new calls of the same operator.

    Calls are moved only if the operator is called at least as often as before.
    """
    come_at = {one.spot for one in changes if one.more > 0}
    found: dict[tuple[Key, str], Change] = {}
    for some in groups_of(changes, lambda one: one.key[0]).values():
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


def _part(changes: Sequence[Change]) -> Part:
    work = [one for one in changes if one.category != DISPATCH] or list(changes)
    counted = [one for one in work if one.more] or work
    total = sum(one.change_ns for one in changes)
    added = [one for one in counted if one.more > 0 or one.change_ns > 0] or counted  # the cause is new work
    heaviest, lead = _lead(added)
    phase = heaviest.key[2]
    here = [one for one in counted if one.spot in (lead.spot, "")]
    same = [one for one in here if one.key[0] == lead.key[0]]
    more = sum(one.more for one in same)
    moved_from: list[str] = []
    if lead.more and abs(more) <= HALF:  # as many as before, in another phase
        there = {one.key[2] or _NO_PHASE for one in same if one.more * lead.more < 0}
        moved_from = sorted(there - {lead.key[2] or _NO_PHASE})
        same = [one for one in same if one.more * lead.more > 0]
        more = sum(one.more for one in same)
    others = (one for one in here if one.key[0] != lead.key[0] and one.more * more >= 0)
    # Operators that the code calls itself come before the operators within them.
    ordered = sorted(others, key=lambda one: (bool(one.within), -abs(one.change_ns)))
    phases = {one.key[2] or (_NO_PHASE if moved_from else "") for one in same}
    other_lines = []
    elsewhere = groups_of([one for one in counted if one not in here], lambda one: one.spot).values()
    for some in sorted(elsewhere, key=lambda some: -sum(abs(one.change_ns) for one in some)):
        _, named_by = _lead(some)
        often = sum(one.more for one in some if one.key[0] == named_by.key[0])
        other_lines.append(OnLine(operator=named_by.key[0], line=named_by.line, more=round(often, 2)))
    return Part(
        change_ns=round(total, 1),
        operator=lead.key[0],
        module=lead.key[1],
        line=heaviest.line or lead.line,
        phases=sorted(phases, key=lambda name: (name != phase, name)) if "" not in phases else [],
        more=round(more, 2),
        moved_from=moved_from,
        others=list(dict.fromkeys(one.key[0] for one in ordered))[:3],
        other_lines=other_lines,
        category=lead.category,
        shapes=lead.shapes,
        within=lead.within,
    )


def _lead(changes: Sequence[Change]) -> tuple[Change, Change]:
    """Return the change that takes most time, and the change that the part is named by.

    An operator that only calls others takes little time, but the code calls it, so it names the part.
    """
    heaviest = max(changes, key=lambda one: (abs(one.change_ns), abs(one.more)))
    callers = [
        one
        for one in changes
        if one.key[0] == heaviest.within and one.spot == heaviest.spot and one.more * heaviest.more > 0
    ]
    return heaviest, max(callers, key=lambda one: abs(one.more), default=heaviest)


def launches_and_waits(calls: Iterable[CudaCall]) -> list[CudaCall]:
    """Return the calls of CUDA that are counted by metrics: launches and waits."""
    return [one for one in calls if kind_of(one.name) != "other call"]


def host_parts(base: Profile, head: Profile, *, with_launches: bool) -> list[Part]:
    """Return a part for each function of CUDA that the host calls more or less often, without a time of its own.

    The greatest change in number comes first. There are no parts if a profile has no calls of CUDA.

    Args:
        base, head: profiles of one case.
        with_launches: name launches beside waits; for profiles without an operator that is called more often and would
            explain the launches.
    """
    if not base.cuda_calls or not head.cuda_calls:
        return []
    before, now = ({one.name: one.instances for one in launches_and_waits(side.cuda_calls)} for side in (base, head))
    parts = []
    for name in {**before, **now}:
        was, is_now = before.get(name, 0.0), now.get(name, 0.0)
        more, inputs = round(is_now - was, 2), "" if is_whole(was) and is_whole(is_now) else VARY
        if abs(more) > HALF and (with_launches or kind_of(name) == "wait"):
            parts.append(Part(change_ns=0.0, operator=name, more=more, inputs=inputs, category=ON_HOST))
    return sorted(parts, key=lambda one: (-abs(one.more), one.operator))
