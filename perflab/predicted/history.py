"""The predicted tier's part of files of the past: readings of results, accepted levels of baselines."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from perflab.results.predicted import played
from perflab.results.readings import (
    Amount,
    Level,
    Narrow,
    Numbers,
    WrittenBaselines,
    WrittenResult,
    exact_readings,
    places_of,
    prediction_text,
)


class _Cost(Narrow):
    """One operator of a prediction."""

    calls: Amount
    flops: Amount = 0
    bytes_moved: Amount = 0


class _Size(Narrow):
    size_bytes: Amount


class _DryRun(Narrow):
    """The bytes that a dry run requested from the allocator."""

    asked_bytes: Amount = 0


class _Now(Narrow):
    gpu: str = ""
    torch: str = ""
    peak_bytes: Amount = 0
    costs: list[_Cost] = []
    saved: list[_Size] = []
    launches: Amount = 0
    allocated_bytes: Amount = 0
    reserved_bytes: Amount = 0
    dry_run: _DryRun | None = None
    world_size: Amount = 1
    rank: Amount | None = None


class _Predicted(Narrow):
    now: _Now | None = None


class _Stored(Narrow):
    torch: str
    recorded: str
    peak_bytes: int
    costs: list[tuple[str, str, str, int, int, int]] = []
    saved_bytes: int = 0
    real: dict[str, int] = {}
    reason: str | None = None
    world_size: int = 1
    rank: int = 0


_SIZES = ("peak", "saved", "bytes", "asked", "allocated", "reserved", "to_device", "to_host")
"""Quantities of a stored prediction, or of a dry run, whose unit is bytes."""


def numbers_of(result: WrittenResult) -> Numbers | None:
    """Return the numbers of a prediction, or of a dry run; None if there are none."""
    now = msgspec.json.decode(result.outcome, type=_Predicted).now
    if now is None:
        return None
    sizes = {
        "peak": now.peak_bytes,
        "saved": sum(one.size_bytes for one in now.saved),
        "bytes": sum(one.bytes_moved for one in now.costs),
    }
    if now.dry_run is not None:
        asked = now.dry_run.asked_bytes
        sizes |= {"asked": asked, "allocated": now.allocated_bytes, "reserved": now.reserved_bytes}
    counts = {
        "flops": sum(one.flops for one in now.costs),
        "operators": sum(one.calls for one in now.costs),
        "launches": now.launches,
    }
    readings = exact_readings(sizes, {name: count for name, count in counts.items() if count})
    place = played(f"{now.gpu}-dry-run" if now.dry_run is not None else now.gpu, now.rank, now.world_size)
    return Numbers(readings, places_of(None, prediction_text(place, now.torch)), now.gpu)


def levels_of(file: WrittenBaselines) -> Iterator[Level]:
    """Yield the accepted levels of a file of predictions."""
    gpu = file.gpu or ""
    for name, raw in file.cases.items():
        one = msgspec.json.decode(raw, type=_Stored)
        found = {
            "peak": one.peak_bytes,
            "saved": one.saved_bytes,
            "operators": sum(cost[3] for cost in one.costs),
            "flops": sum(cost[4] for cost in one.costs),
            "bytes": sum(cost[5] for cost in one.costs),
            **one.real,
        }
        sizes = {quantity: value for quantity, value in found.items() if quantity in _SIZES}
        readings = exact_readings(sizes, {name: value for name, value in found.items() if name not in sizes})
        places = places_of(None, prediction_text(played(gpu, one.rank, one.world_size), one.torch))
        yield Level(name, gpu, places, one.recorded, one.reason, readings)
