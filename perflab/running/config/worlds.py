"""Makes a case of each number of processes that a test is marked with."""

from __future__ import annotations

import pytest

from perflab.base.errors import SettingError
from perflab.ranks.place import launched
from perflab.running.config.marker import world_sizes_of
from perflab.running.config.reading import settings_of


def spread(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test by ``world_size`` if it is to run with more than one number of processes."""
    marks = list(metafunc.definition.iter_markers("perf"))
    try:
        ours = launched()
        sizes = world_sizes_of(marks, settings_of(metafunc.config).world_sizes if ours is None else (ours[1],))
    except (SettingError, ValueError):
        return  # the session is refused once all tests are collected
    several = any(isinstance(mark.kwargs.get("world_size"), list | tuple) for mark in marks)
    if several or len(sizes) > 1:
        if "world_size" not in metafunc.fixturenames:  # a case need not ask for the number
            metafunc.fixturenames.append("world_size")
        metafunc.parametrize("world_size", sizes, ids=[f"world{size}" for size in sizes])
