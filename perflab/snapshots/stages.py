"""Finds the stages of a recording from its marks: texts on events, or spans of time. Nothing is guessed. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from perflab.snapshots.analysis import Thread
from perflab.snapshots.model import Stage

_STEP = re.compile(r"ProfilerStep#\d+$")


def of_marks(marks: Iterable[str | None]) -> list[Stage]:
    """Return runs of the same mark over successive moments.

    Args:
        marks: the mark of each moment, from moment 1 on; empty: no mark; None: unknown, and the stage continues if the
            next known mark equals the last one.
    """
    stages: list[Stage] = []
    before = ""
    for moment, mark in enumerate(marks, start=1):
        if mark is None:
            continue
        if mark and mark == before:
            stages[-1] = stages[-1]._replace(end=moment)
        elif mark:
            stages.append(Stage(mark, moment - 1, moment))
        before = mark
    return stages


def of_threads(marks: Sequence[str], threads: Sequence[Thread | None]) -> tuple[list[Stage], bool]:
    """Return the stages of PyTorch's marks, which are per thread: autograd's threads lack the main thread's marks.

    So a moment without a mark ends a stage only if the moment's thread sets marks.

    Args:
        marks: the mark of each moment, from moment 1 on; empty: no mark.
        threads: the thread of each moment; None if unknown.

    Returns:
        The stages; and whether no mark's thread is known while stages contain moments without a mark.
    """
    marking = {thread for thread, mark in zip(threads, marks, strict=True) if thread and mark}
    stages = of_marks(mark if mark or thread in marking else None for mark, thread in zip(marks, threads, strict=True))
    return stages, not marking and len(stages) < len(of_marks(marks))


def of_annotations(annotations: object, device: int, times_us: Sequence[int]) -> tuple[list[Stage], list[Stage]]:
    """Return the stages and steps of ``record_function``'s spans: the outermost spans, and ``ProfilerStep`` spans.

    Args:
        annotations: PyTorch's list of beginnings and ends, in order; anything else counts as an empty list. Each entry
            names the device that was current, so a device that never was current gets the entries of all devices.
        device: the number of the device whose stages are wanted.
        times_us: the time of each moment from 1 on.
    """
    found = [mark for one in (annotations if isinstance(annotations, list) else ()) if (mark := _mark(one))]
    own = [mark for mark in found if mark[3] in (device, None)]
    steps: list[Stage] = []
    spans: list[tuple[str, bool, int]] = []
    for name, begins, time_us, _ in own or found:
        if not _STEP.match(name):
            spans.append((name, begins, time_us))
        elif begins:
            steps.append(Stage(name, bisect_left(times_us, time_us), len(times_us)))
        elif steps and steps[-1].name == name:
            steps[-1] = steps[-1]._replace(end=bisect_right(times_us, time_us))
    stages: list[Stage] = []
    for name, begin_us, end_us in _outermost(spans):
        end = len(times_us) if end_us is None else bisect_right(times_us, end_us)
        start = bisect_left(times_us, begin_us)
        if end > start and (not stages or start >= stages[-1].end):
            stages.append(Stage(name, start, end))
    return stages, steps


def _outermost(marks: Sequence[tuple[str, bool, int]]) -> Iterator[tuple[str, int, int | None]]:
    """Yield name, beginning and end of the spans that lie in no other span that ends.

    Of a span that was still open when the file was written, the spans within are yielded instead. If the span that
    began last was still open, its end is None: the program was in this span.
    """
    open_spans: list[int] = []
    names: Counter[str] = Counter()
    ends: dict[int, int] = {}
    for number, (name, begins, _) in enumerate(marks):
        if begins:
            open_spans.append(number)
            names[name] += 1
        elif names[name]:  # inner spans without an end of their own end with this span
            while True:
                inner = open_spans.pop()
                names[marks[inner][0]] -= 1
                if marks[inner][0] == name:
                    break
            ends[inner] = number
    last = max((number for number, (_, begins, _) in enumerate(marks) if begins), default=-1)
    still_open, after = {*open_spans}, -1
    for number, (name, begins, begin_us) in enumerate(marks):
        if not begins or number < after:
            continue
        if number in ends:
            after = ends[number]
            yield name, begin_us, marks[after][2]
        elif number == last and number in still_open:
            yield name, begin_us, None


def _mark(one: Any) -> tuple[str, bool, int, object] | None:
    """Return name, whether the mark is a beginning, time in µs and device; None if the entry is no such mark."""
    if type(one) is not dict:
        return None
    name, stage, time_us, device = one.get("name"), one.get("stage"), one.get("time_us"), one.get("device")
    if type(name) is not str or type(time_us) is not int or stage not in ("START", "END"):
        return None
    return name, stage == "START", time_us, device


def steps_of(stages: Sequence[Stage]) -> list[Stage]:
    """Return the steps of repeating stages: each step begins with the first name that repeats, whatever its digits.

    At least two repetitions are needed; a single one counts as no step. Moments between two steps belong to the later
    step: they prepare it. If only the optimizer is marked, as ``torch.optim`` does by itself, these moments are the
    forward and the backward.
    """
    if not stages:
        return []
    names = [_plain(stage.name) for stage in stages]
    times = Counter(names)
    first = next((name for name in names if times[name] > 1), "")
    starts = [number for number, name in enumerate(names) if name == first]
    if len(starts) < 2:
        return []
    ends = [*(number - 1 for number in starts[1:]), len(stages) - 1]
    of_each = {tuple(names[begin : end + 1]) for begin, end in zip(starts[:-1], ends, strict=False)}
    if starts[0] and len(of_each) > 1:  # after stages that ran once, only identical repetitions count as steps
        return []
    edges = [stages[starts[0]].start, *(stages[end].end for end in ends)]
    return [Stage(f"step {number}", begin, end) for number, (begin, end) in enumerate(pairwise(edges), start=1)]


def _plain(name: str) -> str:
    return re.sub(r"\d+", "#", name)
