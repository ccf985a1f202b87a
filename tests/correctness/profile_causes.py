"""Changes of the lab's model, each made on purpose: does the explanation name the right place first?

``python -m tests.correctness.profile_causes`` profiles ``tiny`` as it is and with each change, explains the difference
as a failing case would, and writes a table. What is named first has to have the operator, the module and the function
in which the line stands; where code was only added, the time of all that runs there too. It fails if more than two are
wrong, or an unchanged run is given a cause. Nothing is saved.

Before that comes a module of plain Python with edits of its own, told from the profile of the module as it is, and from
what a baseline keeps of that: the function and the line of the edit have to be named first. ``--python`` runs these
alone.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import torch

from perflab.lab.train import TrainingConfig
from perflab.measure.allocator import keep_freed_memory
from perflab.measure.measurement import stopwatch_for
from perflab.measure.workload import Step, Workload
from perflab.profiles.compact import compact
from perflab.profiles.difference import explain
from perflab.profiles.explanation_text import explanation_texts
from perflab.profiles.records import DISPATCH, GAPS, VARY, Explanation, Part, Profile
from perflab.profiles.take import ProfilePlan, take_profile
from tests.correctness.functions import function_at
from tests.correctness.profile_faults import FAULTS, Fault
from tests.correctness.python_edits import EDITS, MODULE
from tests.perf.setup import Setup, phases_of

CPU = torch.device("cpu")
WARM_UP = 3
BUDGET_NS = 0.5e9
VARIED = 4
"""As many times more for what varies: the mean of few calls may be a whole number by chance."""
ROOM = 0.02
"""Half the width of the gate's interval, as a share of the base's time."""
UNCHANGED = 10
MOST_WRONG = 2
OF_ITS_TIME = 0.1
"""How far the time of a part may be from that of what was added: rows are rounded."""


def profiled(setup: Setup, fault: Fault | None = None) -> Profile:
    """The profile of a training step, with a change or without."""
    if fault is not None:
        setup = setup.switched(training=fault.training, changes=fault.changes)
    with fault.patched() if fault is not None else contextlib.nullcontext():
        step = Step(**phases_of(setup.training_step()))
        for _ in range(WARM_UP):
            step.run()
        budget_ns = BUDGET_NS * (VARIED if fault is not None and fault.varies else 1)
        return take_profile(step, CPU, stopwatch_for(CPU), ProfilePlan(budget_ns), lambda _what: None)


def in_turns(setup: Setup, fault: Fault | None) -> tuple[Profile, Profile]:
    """Both sides, twice in turns; of each the faster, which less has disturbed."""
    first, head, again, last = (profiled(setup, one) for one in (None, fault, fault, None))
    return min(first, last, key=_timer_ns), min(head, again, key=_timer_ns)


def _timer_ns(one: Profile) -> float:
    return one.timer_ns


def explained(base: Profile, head: Profile, *, varies: bool = False) -> Explanation:
    """As of a case whose gate found exactly what the profiles differ by, so that times are explained too."""
    if varies:
        return explain(base, head, "the model as it is", None)
    change_ns, room_ns = head.timer_ns - base.timer_ns, ROOM * base.timer_ns
    return explain(base, head, "the model as it is", change_ns, (change_ns - room_ns, change_ns + room_ns))


def is_right(fault: Fault, found: Explanation, head: Profile) -> bool:
    """Whether what is named first is the cause, with its place and time."""
    first = found.parts[0] if found.parts else None
    if first is None or bool(first.again) != fault.again or (first.inputs == VARY) != fault.varies:
        return False
    if tuple(first.layers) != fault.layers:
        return False
    is_there = function_at(first.line).startswith(fault.place) or (fault.again and not first.line)
    return (
        (first.operator in fault.operators or not fault.operators)
        and first.module in fault.modules
        and is_there
        and (not fault.is_added or _has_its_time(fault, first, head))
        and all(
            any(operator == said and function_at(line).startswith(place) for said, line in _named(found))
            for operator, place in fault.also
        )
    )


def _named(found: Explanation) -> Iterator[tuple[str, str]]:
    """Every operator that is named, with the line."""
    for part in found.parts:
        yield from ((operator, part.line) for operator in (part.operator, *part.others))
        yield from ((one.operator, one.line) for one in part.other_lines)


def _has_its_time(fault: Fault, part: Part, head: Profile) -> bool:
    """Whether a part has the time of what runs in its place; PyTorch's own work there has no line, and may be in it."""
    rows = [row for row in head.rows if row.module == part.module and row.category not in GAPS]
    there_ns = sum(row.time_ns for row in rows if function_at(row.line).startswith(fault.place))
    own_ns = sum(row.time_ns for row in rows if row.category == DISPATCH)
    return (1 - OF_ITS_TIME) * there_ns <= part.change_ns <= (1 + OF_ITS_TIME) * there_ns + own_ns


def loaded(text: str, folder: Path) -> ModuleType:
    """A module of plain Python, written to a folder."""
    path = folder / "records.py"
    path.write_text(text)
    linecache.clearcache()
    module = ModuleType("records")
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def of_python(text: str, folder: Path) -> Profile:
    """The profile of a call of such a module."""
    workload = Workload(loaded(text, folder).run, (), {})
    for _ in range(WARM_UP):
        workload.run()
    return take_profile(workload, CPU, stopwatch_for(CPU), ProfilePlan(BUDGET_NS), lambda _what: None)


def python_edits(folder: Path) -> int:
    """Write a table of the edits of plain Python; returns how many of the explanations are wrong."""
    print("| edit | right | stored | what is said first |\n| --- | --- | --- | --- |")
    wrong = 0
    for edit in EDITS:
        first, head, again, last = (of_python(text, folder) for text in (MODULE, edit.module, edit.module, MODULE))
        base, head = min(first, last, key=_timer_ns), min(head, again, key=_timer_ns)
        both = explained(base, head), explained(compact(base), head)
        right = [
            bool(one.parts) and one.parts[0].module == edit.function and edit.is_at(one.parts[0].line) for one in both
        ]
        wrong += right.count(False)
        said = explanation_texts(both[0], timed=True)[0]
        shown = " | ".join("yes" if one else "NO" for one in right)
        print(f"| {edit.name} | {shown} | {said} |", flush=True)
    print(f"{2 * len(EDITS) - wrong} of {2 * len(EDITS)} are right")
    return wrong


def main() -> int:
    """Write the table, a line for each change; 1 if too few are right, or an unchanged run is given a cause."""
    keep_freed_memory()  # as any measurement does
    torch.manual_seed(0)
    with TemporaryDirectory() as folder:
        wrong = python_edits(Path(folder))
    if "--python" in sys.argv[1:]:
        return int(wrong > MOST_WRONG)
    setup = Setup("tiny", 4, 128, CPU, TrainingConfig(), {"attention": "sdpa"})
    print("| change | right | what is said first |\n| --- | --- | --- |")
    right = 0
    for fault in FAULTS:
        base, head = in_turns(setup, fault)
        found = explained(base, head, varies=fault.varies)
        is_first = is_right(fault, found, head)
        right += is_first
        said = explanation_texts(found, timed=not fault.varies)[0]
        print(f"| {fault.name} | {'yes' if is_first else 'NO'} | {said} |", flush=True)
    print(f"{right} of {len(FAULTS)} are right", flush=True)
    accused = sum(bool(explained(*in_turns(setup, None)).parts) for _ in range(UNCHANGED))
    print(f"{accused} of {UNCHANGED} unchanged runs are given a cause")
    return int(right < len(FAULTS) - MOST_WRONG or accused > 0 or wrong > MOST_WRONG)


if __name__ == "__main__":
    sys.exit(main())
