"""Places within which numbers may be compared: a machine for times, the software alone for exact quantities. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from perflab.results.environment import exact_environment
from perflab.results.records import Environment, ExactEnvironment
from perflab.units import format_count


class Place(NamedTuple):
    """The environment that the numbers of one series share, so that the numbers may be compared."""

    text: str
    """The text of the place, as it is shown."""
    group: str
    """A key that the places of exact quantities and of times of one machine have in common."""
    is_exact: bool


def places_of(environment: Environment | None, variant: str) -> tuple[Place, Place]:
    """Return the place of times, and the place of exact quantities, for results from an environment.

    ``variant`` is the text of the place of a result without an environment, which was predicted or compiled.
    """
    if environment is None:
        nowhere = Place(variant or "no machine", variant or "no machine", is_exact=True)
        return nowhere, nowhere
    exact = exact_environment(environment)
    group = repr(exact)
    return Place(_times_text(environment), group, is_exact=False), exact_place(exact)


def exact_place(exact: ExactEnvironment) -> Place:
    """Return the place of exact quantities that were stored with their exact environment."""
    return Place(_exact_text(exact), repr(exact), is_exact=True)


def prediction_text(place: str, torch: str) -> str:
    """Return the text of the place of a prediction's numbers: the GPU and the version of torch."""
    return basis_text({"GPU": place, "torch": torch})


def basis_text(compared_by: Mapping[str, str]) -> str:
    """Return what must agree before numbers of cases that did not run are compared: ``GPU h100, torch 2.13.0``."""
    return ", ".join(f"{name} {value}" for name, value in compared_by.items() if value)


def _times_text(environment: Environment) -> str:
    versions = [f"torch {environment.torch}", *([f"CUDA {environment.cuda}"] if environment.cuda else [])]
    driver = [f"driver {environment.driver}"] if environment.driver else []
    cores = f"{format_count(environment.cores, 'core')}, {format_count(environment.threads, 'thread')}"
    machine = [f"machine {environment.machine}"] if environment.machine else []
    named = f"{environment.device}: {environment.device_name}"
    return " · ".join([f"{named}, {cores}", *versions, *driver, f"Python {environment.python}", *machine])


def _exact_text(exact: ExactEnvironment) -> str:
    named = f"{exact.device}: {exact.device_name}" if exact.device_name else exact.device
    threads = f"{exact.threads} thread{'s' * (exact.threads != 1)}"
    return f"{named}, {exact.isa}, {threads}, any machine · torch {exact.torch} · Python {exact.python}"
