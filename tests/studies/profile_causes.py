"""Changes of the lab's model, each made on purpose: does the explanation name the right place first?

``python -m tests.studies.profile_causes`` profiles ``tiny`` as it is and with each change, explains the difference
as a failing case would, and writes a table. What is named first has to have the operator, the module and the function
in which the line stands; where code was only added, the time of all that runs there too. It fails if more than two are
wrong, or an unchanged run is given a cause. Nothing is saved.

``... profile_causes small`` does the same with the changes of ``model_edits``, written one by one into the five models
of ``small_models``: what is named first, of the counts if these became worse and else of the peak, has to have the
operator, the phase and the line of the edit. Both against the profile as it is in an A/B run or beside the baseline's
commit, and against what a baseline stores of it. It fails if the first is wrong for more than three of thirty.

Before the table of ``tiny`` comes a module of plain Python with edits, told from the profile of the module as it is
and from what a baseline keeps of that: the function and the line of the edit have to be named first. ``--python`` runs
these alone.
"""

from __future__ import annotations

import contextlib
import linecache
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import NamedTuple

import torch

from perflab.lab.train import TrainingConfig
from perflab.measure.calls.workload import Step, Workload
from perflab.measure.counts.counter import CallCounter, compiler_state
from perflab.measure.machine.devices import keep_freed_memory
from perflab.measure.memory.peak import measure_memory
from perflab.measured.baselines import packed, unpacked
from perflab.measurement.measurement import stopwatch_for
from perflab.profiles.difference import explain
from perflab.profiles.peak import explain_peak
from perflab.profiles.take import ProfilePlan, take_profile
from perflab.profiles.take_peak import take_peak
from perflab.profiles.text import explanation_texts, peak_texts
from perflab.results.peak import Peak
from perflab.results.profile import DISPATCH, GAPS, VARY, Explanation, Part, Profile
from tests.correctness.functions import function_at
from tests.correctness.model_edits import EDITS, Edit
from tests.correctness.python_edits import EDITS as PYTHON_EDITS
from tests.correctness.python_edits import MODULE
from tests.perf.setup import Setup, phases_of
from tests.studies.profile_faults import FAULTS, Fault

CPU = torch.device("cpu")
WARM_UP = 3
BUDGET_NS = 0.5e9
VARIED = 4
"""As many times more for what varies: the mean of few calls may be a whole number by chance."""
ROOM = 0.02
"""Half the width of the gate's interval, as a share of the base's time."""
UNCHANGED = 10
MOST_WRONG = 2
MOST_WRONG_OF_SMALL = 3
SMALL = Path(__file__).parents[1] / "correctness" / "small_models.py"
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


class Side(NamedTuple):
    """What is known of a training step of a small model."""

    profile: Profile
    peak: Peak
    peak_bytes: int
    counts: dict[str, int]


def small(kind: str, text: str) -> Side:
    """The step as ``text`` has it, in place of the file of the small models."""
    module = ModuleType("small_models")
    exec(compile(text, str(SMALL), "exec"), module.__dict__)
    torch.manual_seed(0)
    training = module.Training(kind)
    has_phases = kind in ("diffusion", "recommender")
    phases = training.forward, training.backward, training.update
    workload = Step(*phases) if has_phases else Workload(training.step, (), {})
    for _ in range(WARM_UP):
        workload.run()
    counter = CallCounter(CPU, compiler_state())
    memory, _ = measure_memory(workload, CPU, counter)
    profile = take_profile(workload, CPU, stopwatch_for(CPU), ProfilePlan(0.0), lambda _what: None)
    return Side(profile, take_peak(workload, CPU), memory.peak_bytes, counter.counts)


def stored(profile: Profile) -> Profile:
    """The profile as a baseline gives it back."""
    back = unpacked(packed(profile))
    assert back is not None
    return back


def said_first(base: Side, before: Profile, head: Side) -> str:
    """The first line of the cause, as a failing case has it; empty where no case would fail."""
    if any(count > base.counts.get(name, 0) for name, count in head.counts.items()):
        return explanation_texts(explain(before, head.profile, "the model as it is", None), timed=False)[0]
    grown = head.peak_bytes - base.peak_bytes
    return peak_texts(explain_peak(base.peak, head.peak, "the model as it is", grown))[0] if grown > 0 else ""


def names(edit: Edit, text: str, said: str) -> bool:
    """Whether a line of the edit, one of its operators and one of its phases is named; ``text`` is edited."""
    first = text[: text.index(edit.now)].count("\n") + 1
    edited = range(first, first + edit.now.count("\n") + 1)
    lines = [at for at, line in enumerate(text.splitlines(), 1) if (edit.at in line if edit.at else at in edited)]
    return (
        any(re.search(rf"{SMALL.name}:{line}\b", said) for line in lines)
        and (not edit.operators or any(_is_word(one, said) for one in edit.operators.split()))
        and (not edit.phases or any(one in said for one in edit.phases.split()))
    )


def _is_word(word: str, text: str) -> bool:
    return re.search(rf"[: ]{re.escape(word)}(?!\w)", text) is not None


def small_models() -> int:
    """The table of the small models; 1 if too few are right."""
    original = SMALL.read_text()
    bases = {kind: small(kind, original) for kind in dict.fromkeys(edit.kind for edit in EDITS)}
    print("| change | right | by the stored profile | what is said first |\n| --- | --- | --- | --- |")
    right = [0, 0]
    for edit in EDITS:
        assert original.count(edit.was) == 1, edit
        text, base = original.replace(edit.was, edit.now), bases[edit.kind]
        head = small(edit.kind, text)
        said = [said_first(base, before, head) for before in (base.profile, stored(base.profile))]
        is_right = [names(edit, text, one) for one in said]
        right = [sum(pair) for pair in zip(right, is_right, strict=True)]
        yes = " | ".join("yes" if one else "NO" for one in is_right)
        print(f"| {edit.kind}: {edit.name} | {yes} | {said[0]} |", flush=True)
    print(f"{right[0]} of {len(EDITS)} are right, {right[1]} by the stored profile")
    return int(right[0] < len(EDITS) - MOST_WRONG_OF_SMALL)


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
    for edit in PYTHON_EDITS:
        first, head, again, last = (of_python(text, folder) for text in (MODULE, edit.module, edit.module, MODULE))
        base, head = min(first, last, key=_timer_ns), min(head, again, key=_timer_ns)
        both = explained(base, head), explained(stored(base), head)
        right = [
            bool(one.parts) and one.parts[0].module == edit.function and edit.is_at(one.parts[0].line) for one in both
        ]
        wrong += right.count(False)
        said = explanation_texts(both[0], timed=True)[0]
        shown = " | ".join("yes" if one else "NO" for one in right)
        print(f"| {edit.name} | {shown} | {said} |", flush=True)
    print(f"{2 * len(PYTHON_EDITS) - wrong} of {2 * len(PYTHON_EDITS)} are right")
    return wrong


def main() -> int:
    """Write the table, a line for each change; 1 if too few are right, or an unchanged run is given a cause."""
    keep_freed_memory()  # as any measurement does
    if sys.argv[1:] == ["small"]:
        return small_models()
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
