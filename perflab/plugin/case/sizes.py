"""What ``perf.fits`` was given: how a case is made at other sizes, checked while the test can still name it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from perflab.errors import UsageError


@dataclass(frozen=True)
class Exploration:
    """What ``perf.fits`` was given."""

    build: Callable[..., Any]
    sizes: dict[str, int]
    remedies: dict[str, dict[str, Any]]


def exploration_of(
    build: Callable[..., Any], sizes: Mapping[str, int], remedies: Mapping[str, Mapping[str, Any]]
) -> Exploration:
    """What ``perf.fits`` was given, checked.

    Raises:
        UsageError: ``build`` cannot be called, a size is no positive int, or a remedy no mapping.
    """
    if not callable(build):
        raise UsageError(
            f"perf.fits() got {type(build).__name__!r}, which cannot be called",
            "pass a function that makes the callable for given sizes: perf.fits(build, sizes={...})",
        )
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"perf.fits(sizes={{{name!r}: {size!r}}})", "give each size as an int, 1 or more")
    if not sizes:
        raise UsageError("perf.fits() without sizes", "name at least one: sizes={'batch_size': 4}")
    for name, changes in remedies.items():
        if not isinstance(changes, Mapping):
            raise UsageError(
                f"perf.fits(remedies={{{name!r}: {changes!r}}})",
                "give further arguments of build by name: remedies={'bf16': {'precision': 'bf16'}}",
            )
    return Exploration(build, dict(sizes), {name: dict(what) for name, what in remedies.items()})
