"""Stages of a recording from its marks: texts that stood over events, or spans by time. Nothing is guessed. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from perflab.snapshots.model import Stage

_STEP = re.compile(r"ProfilerStep#\d+$")


def of_marks(marks: Iterable[str]) -> list[Stage]:
    """Runs of the same mark over successive moments.

    What bears no mark between two runs of the same one belongs to them: PyTorch's marks are a thread's own, and
    autograd has threads. Elsewhere it is no stage.

    Args:
        marks: that of each moment, from moment 1 on.
    """
    stages: list[Stage] = []
    before = ""
    for moment, mark in enumerate(marks, start=1):
        if mark and stages and stages[-1].name == mark and (before in ("", mark)):
            stages[-1] = stages[-1]._replace(end=moment)
        elif mark:
            stages.append(Stage(mark, moment - 1, moment))
        before = mark
    return stages


def of_annotations(annotations: object, device: int, times_us: Sequence[int]) -> tuple[list[Stage], list[Stage]]:
    """Stages and steps of the spans that ``record_function`` marked: the outermost ones, ``ProfilerStep`` apart.

    Args:
        annotations: PyTorch's list of beginnings and ends, in order; what is no such list has none. Each bears the
            device that was the current one, so a device that never was has the marks of all.
        device: whose.
        times_us: when each moment was.
    """
    stages, steps, open_spans = [], [], list[tuple[str, int]]()
    found = [mark for one in (annotations if isinstance(annotations, list) else ()) if (mark := _mark(one))]
    own = [mark for mark in found if mark[3] in (device, None)]
    for name, begins, time_us, _ in own or found:
        if _STEP.match(name):
            if begins:
                steps.append(Stage(name, bisect_left(times_us, time_us), len(times_us)))
            elif steps and steps[-1].name == name:
                steps[-1] = steps[-1]._replace(end=bisect_right(times_us, time_us))
        elif begins:
            open_spans.append((name, bisect_left(times_us, time_us)))
        elif any(name == span for span, _ in open_spans):
            while open_spans:
                span, start = open_spans.pop()
                if span == name:
                    break
            end = bisect_right(times_us, time_us)
            if not open_spans and end > start:
                stages.append(Stage(name, start, end))
    return [stage for number, stage in enumerate(stages) if not number or stage.start >= stages[number - 1].end], steps


def _mark(one: Any) -> tuple[str, bool, int, object] | None:
    """Name, whether it begins, when, and the device; None where it is not said."""
    if type(one) is not dict:
        return None
    name, stage, time_us, device = one.get("name"), one.get("stage"), one.get("time_us"), one.get("device")
    if type(name) is not str or type(time_us) is not int or stage not in ("START", "END"):
        return None
    return name, stage == "START", time_us, device


def steps_of(stages: Sequence[Stage]) -> list[Stage]:
    """Steps where stages repeat: each begins with the first stage's name, numbers aside. One step is none.

    What lies between two steps belongs to the later one: it makes ready for it, and where the optimizer alone is
    marked, as ``torch.optim`` does by itself, it is the forward and the backward.
    """
    if not stages:
        return []
    first = _plain(stages[0].name)
    starts = [number for number, stage in enumerate(stages) if _plain(stage.name) == first]
    if len(starts) < 2:
        return []
    ends = [*(number - 1 for number in starts[1:]), len(stages) - 1]
    edges = [stages[0].start, *(stages[end].end for end in ends)]
    return [Stage(f"step {number}", begin, end) for number, (begin, end) in enumerate(pairwise(edges), start=1)]


def _plain(name: str) -> str:
    return re.sub(r"\d+", "#", name)
