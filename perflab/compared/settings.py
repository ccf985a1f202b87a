"""What a run is asked of an A/B comparison."""

from __future__ import annotations

from dataclasses import dataclass

from perflab.plugin.config.settings import Given
from perflab.units import parse_fraction


@dataclass(frozen=True)
class Comparing:
    """The compared tier's part of the settings."""

    threshold: float
    """The change that counts."""


def read(given: Given) -> Comparing:
    """Read its option.

    Raises:
        SettingError: a value that cannot be used.
    """
    return Comparing(threshold=given.value("perf_against_threshold", parse_fraction))
