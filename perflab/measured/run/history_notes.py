"""Notes about the times that a run kept in this machine's own history."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from perflab.environment import is_fleeting
from perflab.measured.judge.local_history import Step
from perflab.report.lines import short_name
from perflab.units import format_count, format_names


def history_notes(steps: Mapping[str, Step], *, is_named: bool) -> list[str]:
    """Notes on what each case's times did to its history. ``is_named``: the user has given the machine its name."""
    notes = []
    begun = sum(step.is_begun for step in steps.values())
    if begun:
        notes.append(f"kept the times of {format_count(begun, 'case')} for the next run here (save: --perf-update-new)")
        if is_fleeting() and not is_named:
            notes.append("  this is a container, or has no identifier: name it with --perf-machine=NAME")
    anew = {case: step.begun_anew for case, step in steps.items() if step.begun_anew is not None}
    if anew:
        said = f"this machine's history of {format_count(len(anew), 'case')} was restarted: {_named(anew)}"
        notes.append("\n".join(textwrap.wrap(said, 80, subsequent_indent="  ", break_on_hyphens=False)))
    left_out = {case: step.left_out for case, step in steps.items() if step.left_out is not None}
    if left_out:
        notes.append(
            f"not added to this machine's history, though the code is the same: {_named(left_out)}\n"
            "  -> if these times are the usual ones, delete .perflab/times: the next run starts a new history"
        )
    return notes


def _named(said: Mapping[str, str]) -> str:
    return format_names([f"{short_name(case)} ({text})" for case, text in said.items()], most=3)
