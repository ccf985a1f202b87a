"""What a history needs of a result of which nothing ran, a prediction or a compiled kernel: its quantities and place.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from perflab.history import narrow
from perflab.history.narrow import UNIT_BYTES, UNIT_COUNT
from perflab.history.series import Reading


def where_of(now: narrow.Now) -> str:
    """Where its numbers belong, in words."""
    if now.gpu is not None:
        return prediction_text(f"{now.gpu}-dry-run" if now.dry_run is not None else now.gpu, now.torch or "")
    return basis_text({"triton": now.triton or "", "ptxas": now.resources.ptxas if now.resources is not None else ""})


def prediction_text(place: str, torch: str) -> str:
    """Where a prediction's numbers belong."""
    return basis_text({"GPU": place, "torch": torch})


def basis_text(compared_by: Mapping[str, str]) -> str:
    """What must agree before numbers of what did not run are compared: ``GPU h100, torch 2.13.0``."""
    return ", ".join(f"{name} {value}" for name, value in compared_by.items() if value)


def readings_of_now(now: narrow.Now) -> dict[str, Reading]:
    """By quantity, named as in a report."""
    if now.resources is not None:
        return now.resources.readings()
    if now.peak_bytes is None:
        return {}
    sizes = {
        "peak": now.peak_bytes,
        "saved": sum(one.size_bytes for one in now.saved),
        "bytes": sum(one.bytes_moved for one in now.costs),
    }
    if now.dry_run is not None:
        sizes |= {"asked": now.dry_run.asked_bytes, "allocated": now.allocated_bytes, "reserved": now.reserved_bytes}
    counts = {
        "flops": sum(one.flops for one in now.costs),
        "operators": sum(one.calls for one in now.costs),
        "launches": now.launches,
    }
    return {name: Reading(value, UNIT_BYTES, True) for name, value in sizes.items()} | {
        name: Reading(value, UNIT_COUNT, True) for name, value in counts.items() if value
    }
