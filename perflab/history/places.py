"""Where numbers belong, so that they compare: times to a machine, exact quantities to software alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from perflab.environment import exact_environment
from perflab.records import Environment, ExactEnvironment
from perflab.units import format_count


class Place(NamedTuple):
    """What numbers of one series share, so that they compare."""

    text: str
    """As it is shown."""
    group: str
    """What exact quantities and times of one machine have in common."""
    is_exact: bool


def places_of(environment: Environment | None, variant: str) -> tuple[Place, Place]:
    """Where times, and exact quantities, of results from an environment belong.

    ``variant``: what a result without an environment, which was predicted or compiled, is for.
    """
    if environment is None:
        nowhere = Place(variant or "no machine", variant or "no machine", is_exact=True)
        return nowhere, nowhere
    exact = exact_environment(environment)
    group = repr(exact)
    return Place(_times_text(environment), group, is_exact=False), exact_place(exact)


def exact_place(exact: ExactEnvironment) -> Place:
    """Where exact quantities belong that say so themselves."""
    return Place(_exact_text(exact), repr(exact), is_exact=True)


def prediction_text(place: str, torch: str) -> str:
    """Where a prediction's numbers belong."""
    return basis_text({"GPU": place, "torch": torch})


def basis_text(compared_by: Mapping[str, str]) -> str:
    """What must agree before numbers of what did not run are compared: ``GPU h100, torch 2.13.0``."""
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
