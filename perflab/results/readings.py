"""The numbers of cases in files of the past, of one run's result or one version of a baseline file, and their places.

Numbers are compared within a place: a machine for times, the software alone for exact quantities.

``perflab history`` reads the files. Each tier knows its own part of them (``Tier.numbers``, ``Tier.levels``), and reads
it as a narrow structure, which skips all other fields.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from perflab.base.identity import DEFAULT, Mode
from perflab.base.reading import MOST_FLOAT, MOST_INT, refuse_key_twice
from perflab.results.environment import exact_environment
from perflab.results.records import Environment, ExactEnvironment
from perflab.units import format_count

DAMAGED = (msgspec.DecodeError, ValueError, RecursionError)
"""The errors that ``decoded`` raises for a damaged file, also for invalid UTF-8 and for brackets nested too deep."""
Amount = Annotated[int, msgspec.Meta(ge=0, le=MOST_INT)]
"""A number of bytes, or a count, within the limits of ``perflab.base.reading``."""
Number = Annotated[float, msgspec.Meta(ge=0, le=MOST_FLOAT)]
Kind = TypeVar("Kind")
UNIT_NS, UNIT_BYTES, UNIT_COUNT = "ns", "bytes", "count"
PEAK = "peak"
"""The quantity of peak memory."""
CALIBRATION = "calibration "
"""The prefix of quantities that describe the machine: readings of fixed work beside a case."""
INEXACT_COUNTS = ("instructions", "callgrind_instructions")
"""Counts that vary from run to run; they are judged as times are."""


class Place(NamedTuple):
    """The environment that the numbers of one series share, so that the numbers may be compared."""

    parts: tuple[str, ...]
    """The device, the versions and the machine, each as it is shown."""
    group: str
    """A key that the places of exact quantities and of times of one machine have in common."""
    is_exact: bool

    @property
    def text(self) -> str:
        """The text of the place, as it is shown."""
        return in_one_text(self.parts)


def in_one_text(parts: Sequence[str]) -> str:
    """Return the parts of a place as one text: ``cpu: EPYC, 2 cores, 1 thread · torch 2.13.0 · Python 3.11.7``."""
    return " · ".join(parts)


def places_of(environment: Environment | None, variant: str) -> tuple[Place, Place]:
    """Return the place of times, and the place of exact quantities, for results from an environment.

    ``variant`` is the text of the place of a result without an environment, which was predicted or compiled.
    """
    if environment is None:
        nowhere = Place((variant or "no machine",), variant or "no machine", is_exact=True)
        return nowhere, nowhere
    exact = exact_environment(environment)
    versions = [f"torch {environment.torch}", *([f"CUDA {environment.cuda}"] if environment.cuda else [])]
    driver = [f"driver {environment.driver}"] if environment.driver else []
    cores = f"{format_count(environment.cores, 'core')}, {format_count(environment.threads, 'thread')}"
    machine = [f"machine {environment.machine}"] if environment.machine else []
    named = f"{environment.device}: {environment.device_name}, {cores}"
    parts = (named, *versions, *driver, f"Python {environment.python}", *machine)
    return Place(parts, repr(exact), is_exact=False), exact_place(exact)


def exact_place(exact: ExactEnvironment) -> Place:
    """Return the place of exact quantities that were stored with their exact environment."""
    named = f"{exact.device}: {exact.device_name}" if exact.device_name else exact.device
    threads = f"{exact.threads} thread{'s' * (exact.threads != 1)}"
    parts = (f"{named}, {exact.isa}, {threads}, any machine", f"torch {exact.torch}", f"Python {exact.python}")
    return Place(parts, repr(exact), is_exact=True)


def prediction_text(place: str, torch: str) -> str:
    """Return the text of the place of a prediction's numbers: the GPU and the version of torch."""
    return basis_text({"GPU": place, "torch": torch})


def basis_text(compared_by: Mapping[str, str]) -> str:
    """Return what must agree before numbers of cases that did not run are compared: ``GPU h100, torch 2.13.0``."""
    return ", ".join(f"{name} {value}" for name, value in compared_by.items() if value)


class Reading(NamedTuple):
    """One quantity of one case in one run."""

    value: float
    unit: str
    is_exact: bool

    @property
    def is_usable(self) -> bool:
        """Whether the reading can be a point: finite, and above 0 or an exact 0, since no call takes 0 ns."""
        return 0.0 < self.value < math.inf or (self.is_exact and self.value == 0.0)


def exact_readings(sizes: Mapping[str, int], counts: Mapping[str, int]) -> dict[str, Reading]:
    """Return the readings of a case that did not run, by quantity: ``sizes`` in bytes, and ``counts``."""
    return {name: Reading(value, UNIT_BYTES, True) for name, value in sizes.items()} | {
        name: Reading(value, UNIT_COUNT, True) for name, value in counts.items()
    }


def counted(name: str, value: float) -> Reading:
    """Return the reading of a count of this name."""
    return Reading(value, UNIT_COUNT, name not in INEXACT_COUNTS)


class Narrow(msgspec.Struct, gc=False):
    """A structure that reads some fields of a JSON object, and skips all others."""


def decoded(raw: bytes, kind: type[Kind]) -> Kind:
    """Decode a JSON text as ``kind``, with the checks that the readers of whole files make.

    Raises:
        One of ``DAMAGED``: the text is damaged, or no JSON of that kind.
    """
    refuse_key_twice(raw)
    return msgspec.json.decode(raw, type=kind)


# --- results as a run wrote them ----------------------------------------------------------------------------


class Changed(Narrow):
    """The present value of a quantity that was compared."""

    now: Number


class Judgement(Narrow):
    """A verdict, and the numbers that were judged."""

    verdict: str
    reasons: list[str] = []
    memory: Changed | None = None
    phases: dict[str, Changed] = {}
    counts: dict[str, Changed] = {}


class _Tagged(Narrow):
    type: str = ""


class WrittenResult(Narrow):
    """One case of a results file, or of a journal. Its tier reads the outcome."""

    case: str
    judgement: Judgement
    outcome: msgspec.Raw = msgspec.Raw(b"null")
    failure: str | None = None
    mode: Mode = DEFAULT
    commit: str | None = None
    """The run's commit, which only a journal's lines have."""

    @property
    def tier(self) -> str | None:
        """The name of the tier of the outcome; None without an outcome."""
        found = msgspec.json.decode(self.outcome, type=_Tagged | None)
        return found.type if found is not None else None


class Numbers(NamedTuple):
    """The numbers of one result, and where they belong."""

    readings: dict[str, Reading]
    """The readings by quantity, named as in a report."""
    places: tuple[Place, Place]
    """The place of times, and the place of exact quantities."""
    variant: str = ""
    """The mode of the calls, or the GPU of a prediction; mostly empty."""
    counts: tuple[dict[str, int], ...] = ()
    """The counts of each process that was judged: a count on which they differ varies."""
    are_cut_short: bool = False
    """Whether measuring the times among the readings was cut short, so that a history leaves these out."""


# --- baselines ----------------------------------------------------------------------------------------------


class WrittenBaselines(Narrow):
    """One version of a baseline file. Its tier reads the cases, and the tables to which they refer."""

    cases: dict[str, msgspec.Raw]
    environments: msgspec.Raw = msgspec.Raw(b"{}")
    gpu: str | None = None
    registration: str | None = None
    saves: msgspec.Raw = msgspec.Raw(b"{}")


class Level(NamedTuple):
    """The accepted level of a case in one environment."""

    case: str
    """The case's name within the file."""
    variant: str
    places: tuple[Place, Place]
    recorded: str
    reason: str | None
    """Why a worse level was accepted in this save; None if it was not worse, or nothing was said."""
    readings: dict[str, Reading]
