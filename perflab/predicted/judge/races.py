"""A dry run in which streams race has failed, whatever it needs. Pure."""

from __future__ import annotations

from perflab.data import changed
from perflab.predicted.records import Prediction, Race
from perflab.records import Judgement, Verdict

_MOST = 3


def unless_races(judgement: Judgement, now: Prediction) -> Judgement:
    """The judgement, or that the case has failed, with the races that were found."""
    races = now.dry_run.races if now.dry_run is not None else []
    if not races:
        return judgement
    said = [_said(one, one.first_lines[0], one.second_lines[0]) for one in races[:_MOST]]
    left = len(races) - _MOST
    return changed(judgement, verdict=Verdict.FAILED, reasons=[*said, *([f"and {left} more"] if left > 0 else [])])


def explain_races(case: str, races: list[Race]) -> str:
    """The text of a failure: each race with the lines of both sides, and what to do."""
    blocks = [f"{case}: streams race, so the contents of its tensors are undefined"]
    for race in races[:_MOST]:
        first, second = (" <- ".join(lines) for lines in (race.first_lines, race.second_lines))
        blocks.append(f"- {_said(race, first, second)}\n  -> {_REMEDY[race.what]}")
    return "\n".join(blocks)


_REMEDY = {
    "access": "let the second stream wait: stream.wait_stream(first), or an event that is recorded after the first use",
    "freed": "call tensor.record_stream(stream), or let its own stream wait for that one before the tensor is freed",
}


def _said(race: Race, first: str, second: str) -> str:
    if race.what == "freed":
        return f"a tensor is freed at {second} while {race.first} may still use it ({first})"
    return f"{race.second} ({second}) does not wait for {race.first} ({first}), and one of them writes"
