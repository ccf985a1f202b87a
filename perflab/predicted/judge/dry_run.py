"""Explains what grew in a dry run: kernels by name, and lines that wait or copy; and reports what is broken.

A dry run in which streams race, or whose ranks make collectives that do not match, has failed, whatever its counts.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from perflab.base.data import changed
from perflab.results.predicted import (
    TO_DEVICE,
    TO_HOST,
    WAIT,
    DryRun,
    Mismatch,
    PredictedBaseline,
    Prediction,
    Race,
    Traffic,
)
from perflab.results.records import Judgement, Verdict
from perflab.units import format_bytes, format_count

MOST = 5
"""The most kernels, or lines of code, that a message names."""
MOST_RACES = 3
_WHAT = {"waits": WAIT, "to_device": TO_DEVICE, "to_host": TO_HOST}

_REMEDY = {
    "access": "let the second stream wait: stream.wait_stream(first), or an event that is recorded after the first use",
    "freed": "call tensor.record_stream(stream), or let its own stream wait for that one before the tensor is freed",
}


def explain_dry_run(now: Prediction, baseline: PredictedBaseline, worse: Sequence[str]) -> list[str]:
    """Return sentences for what grew: kernels with more launches, and the current lines that wait or copy.

    A baseline has no lines of code, which move with every edit, so lines cannot be compared.

    Args:
        now: the dry run.
        baseline: the dry run's baseline.
        worse: the quantities that grew; only those of ``Prediction.real`` are explained here.
    """
    if now.dry_run is None:
        return []
    said = _kernels(now.dry_run.kernels, baseline.kernels) if "launches" in worse else []
    for name, what in _WHAT.items():
        if name in worse:
            found = [one for one in now.dry_run.traffic if one.what == what]
            said += [f"{one.line}: {_doing(one)}" for one in found[:MOST]] + _more(len(found))
    return said


def explain_collectives(now: Prediction, worse: Sequence[str]) -> list[str]:
    """Return sentences for collectives that became more: the current lines that make those kinds."""
    kinds = [name.split(":")[1] for name in worse if name.startswith("collectives:")]
    if not kinds and any(name.startswith("collective") for name in worse):
        kinds = list(dict.fromkeys(one.kind for one in now.exchanged))
    found = [one for one in now.exchanged if one.kind in kinds]
    told = [
        f"{one.line}: {one.kind} of {format_bytes(one.size_bytes)}, {format_count(one.calls, 'time')}"
        for one in found[:MOST]
    ]
    return told + _more(len(found))


def _kernels(now: dict[str, int], before: dict[str, int]) -> list[str]:
    more = [name for name, many in now.items() if many > before.get(name, 0)]
    more.sort(key=lambda name: before.get(name, 0) - now[name])
    told = [f"launches of {name}: {before.get(name, 0)} -> {now[name]}" for name in more[:MOST]]
    return told + _more(len(more))


def _more(found: int) -> list[str]:
    return [f"and {found - MOST} more"] if found > MOST else []


def _doing(one: Traffic) -> str:
    does = "the host waits for the device" if one.what == WAIT else f"{format_bytes(one.size_bytes)} {one.what}"
    return f"{does}, {format_count(one.calls, 'time')} ({one.function})"


def unless_broken(judgement: Judgement, now: Prediction) -> Judgement:
    """Return the judgement; with the verdict FAILED and the reasons if streams race or ranks do not match."""
    if now.dry_run is None:
        return judgement
    races, mismatches = now.dry_run.races, now.dry_run.mismatches
    if not races and not mismatches:
        return judgement
    said = [_mismatch_said(one) for one in mismatches[:MOST_RACES]]
    said += [_race_said(one, one.first_lines[0], one.second_lines[0]) for one in races[:MOST_RACES]]
    left = len(races) + len(mismatches) - len(said)
    return changed(judgement, verdict=Verdict.FAILED, reasons=[*said, *([f"and {left} more"] if left > 0 else [])])


def explain_broken(case: str, dry_run: DryRun) -> str:
    """Return the text of a failure: the first mismatches and races, each with the lines of both sides."""
    blocks = []
    if dry_run.mismatches:
        blocks.append(f"{case}: the collectives of its ranks do not match, so a group of them hangs")
        blocks += [f"- {_mismatch_said(one)}" for one in dry_run.mismatches[:MOST_RACES]]
    if dry_run.races:
        blocks.append(f"{case}: streams race, so the contents of its tensors are undefined")
    for race in dry_run.races[:MOST_RACES]:
        first, second = (" <- ".join(lines) for lines in (race.first_lines, race.second_lines))
        blocks.append(f"- {_race_said(race, first, second)}\n  -> {_REMEDY[race.what]}")
    return "\n".join(blocks)


def _mismatch_said(one: Mismatch) -> str:
    def side(rank: int, collective: str, line: str) -> str:
        return f"rank {rank} calls {collective} ({line})" if collective else f"rank {rank} calls no more"

    mine = side(one.rank, one.collective, one.line)
    return f"collective {one.number}: {mine}, {side(one.other_rank, one.other_collective, one.other_line)}"


def _race_said(race: Race, first: str, second: str) -> str:
    if race.what == "freed":
        return f"a tensor is freed at {second} while {race.first} may still use it ({first})"
    return f"{race.second} ({second}) does not wait for {race.first} ({first}), and one of them writes"
