"""Reads the accepted levels of each case from one version of a baseline file.

Rows, details of replicates and anchors are skipped. Every schema that perflab has written can be read; the fields in a
file show which kind of file it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import msgspec

from perflab.errors import DocumentError
from perflab.history.narrow import DAMAGED, UNIT_BYTES, UNIT_COUNT, UNIT_NS, Memory, Narrow, Resources, decoded
from perflab.history.places import Place, basis_text, exact_place, places_of, prediction_text
from perflab.history.series import INEXACT_COUNTS, Reading
from perflab.records import Environment, ExactEnvironment

_SIZES = ("peak", "saved", "bytes", "asked", "allocated", "reserved", "to_device", "to_host")
"""Quantities of a prediction, or of a dry run, whose unit is bytes."""


class _Accepted(Narrow):
    date: str
    reason: str | None = None


class _Replicate(Narrow):
    median_ns: float
    memory: Memory | None = None
    counts: dict[str, int] = {}


class _Times(Narrow):
    environment: str
    recorded: str
    replicates: list[_Replicate] = []
    accepted: list[_Accepted] = []


class _Needs(Narrow):
    recorded: str
    peak_bytes: list[int] = []
    counts: dict[str, int] = {}
    accepted: list[_Accepted] = []


class _Exact(Narrow):
    needs: dict[str, _Needs]


class _Predicted(Narrow):
    torch: str
    recorded: str
    peak_bytes: int
    costs: list[tuple[str, str, str, int, int, int]] = []
    saved_bytes: int = 0
    real: dict[str, int] = {}
    reason: str | None = None


class _Save(Narrow):
    recorded: str
    triton: str = ""
    reason: str | None = None


class _OldKernel(Narrow):
    """A kernel in a file of schema 1, where each kernel has its own date, Triton version and reason."""

    recorded: str
    resources: Resources
    triton: str = ""
    reason: str | None = None


class _Kernel(Resources):
    save: str = ""


class _File(Narrow):
    schema: int
    cases: dict[str, msgspec.Raw]
    environments: msgspec.Raw = msgspec.Raw(b"{}")
    gpu: str | None = None
    registration: str | None = None
    saves: dict[str, _Save] = {}


@dataclass(frozen=True)
class Level:
    """The accepted level of a case in one environment."""

    case: str
    """The case's name within the file."""
    variant: str
    places: tuple[Place, Place]
    recorded: str
    reason: str | None
    readings: dict[str, Reading]


def levels_in(raw: bytes) -> tuple[str | None, list[Level]]:
    """Return the registration whose kernels a file holds (None for cases of tests), and the levels that it accepts.

    Raises:
        DocumentError: the file is damaged, or is no baseline file of perflab.
    """
    try:
        file = decoded(raw, _File)
        return file.registration, list(_levels(file))
    except (*DAMAGED, KeyError) as error:
        raise DocumentError(f"it is not a baseline file: {error}", "see git log") from error


def _levels(file: _File) -> Iterator[Level]:
    if file.gpu is not None:
        yield from _predicted(file, file.gpu)
    elif file.registration is not None:
        yield from _kernels(file)
    elif any(b'"needs"' in bytes(raw) for raw in file.cases.values()):
        yield from _exact(file)
    else:
        yield from _times(file)


def _times(file: _File) -> Iterator[Level]:
    environments = msgspec.json.decode(file.environments, type=dict[str, Environment])
    places = {name: places_of(one, "") for name, one in environments.items()}
    found = {name: msgspec.json.decode(raw, type=_Times | list[_Times]) for name, raw in file.cases.items()}
    levels = [(name, one) for name, ones in found.items() for one in (ones if isinstance(ones, list) else [ones])]
    for name, one in levels:
        if not one.replicates:
            continue
        readings = {"latency": Reading(median(each.median_ns for each in one.replicates), UNIT_NS, False)}
        peaks = [each.memory.peak_bytes for each in one.replicates if each.memory is not None]
        if peaks:
            readings["peak"] = Reading(max(peaks), UNIT_BYTES, True)
        readings.update(_counts(one.replicates[0].counts))
        yield Level(name, "", places[one.environment], one.recorded, _reason(one.accepted, one.recorded), readings)


def _exact(file: _File) -> Iterator[Level]:
    environments = msgspec.json.decode(file.environments, type=dict[str, ExactEnvironment])
    places = {name: exact_place(one) for name, one in environments.items()}
    for name, raw in file.cases.items():
        for key, one in msgspec.json.decode(raw, type=_Exact).needs.items():
            readings = _counts(one.counts)
            if one.peak_bytes:
                readings["peak"] = Reading(max(one.peak_bytes), UNIT_BYTES, True)
            where = (places[key], places[key])
            yield Level(name, "", where, one.recorded, _reason(one.accepted, one.recorded), readings)


def _predicted(file: _File, gpu: str) -> Iterator[Level]:
    for name, raw in file.cases.items():
        one = msgspec.json.decode(raw, type=_Predicted)
        found = {
            "peak": one.peak_bytes,
            "saved": one.saved_bytes,
            "operators": sum(cost[3] for cost in one.costs),
            "flops": sum(cost[4] for cost in one.costs),
            "bytes": sum(cost[5] for cost in one.costs),
            **one.real,
        }
        units = {quantity: UNIT_BYTES if quantity in _SIZES else UNIT_COUNT for quantity in found}
        readings = {quantity: Reading(value, units[quantity], True) for quantity, value in found.items()}
        where = places_of(None, prediction_text(gpu, one.torch))
        yield Level(name, gpu, where, one.recorded, one.reason, readings)


def _kernels(file: _File) -> Iterator[Level]:
    for name, raw in file.cases.items():
        if file.schema == 1:
            old = msgspec.json.decode(raw, type=_OldKernel)
            save, resources = _Save(old.recorded, old.triton, old.reason), old.resources
        else:
            kernel = msgspec.json.decode(raw, type=_Kernel)
            save, resources = file.saves[kernel.save], kernel
        where = places_of(None, basis_text({"triton": save.triton}))
        yield Level(name, "", where, save.recorded, save.reason, resources.readings())


def _counts(counts: dict[str, int]) -> dict[str, Reading]:
    return {name: Reading(value, UNIT_COUNT, name not in INEXACT_COUNTS) for name, value in counts.items()}


def _reason(accepted: list[_Accepted], recorded: str) -> str | None:
    """Return the reason of the latest accepted change if that change was accepted in this very save; else None."""
    return accepted[-1].reason if accepted and accepted[-1].date == recorded else None
