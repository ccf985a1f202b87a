"""The identity of a case, and its parts: test file, test, parameters, mode. Who reads a part asks here.

A case is identified by its node id, ``tests/perf/test_x.py::TestY::test_z[a-b]``, and by the mode in which its calls
are timed, `` {cold}``, unless that is the default: numbers of two modes are never compared.
``measure/clocks/modes.py`` implements the modes. pytest-xdist appends ``@group`` to
node ids in some processes. Parameters may hold any separator: the test ends at the first ``[`` behind the file.
"""

from __future__ import annotations

import re
from typing import Literal

from perflab.base.data import Data

_MODE = re.compile(r" \{(?:(?:cold|graph|\d+ ranks)(?:, )?)+\}$")


class Mode(Data, frozen=True):
    """A mode: warm or cold caches, calls launched one by one or replayed in a CUDA graph, one process or several."""

    cache: Literal["warm", "cold"] = "warm"
    """The state of the device's caches: ``cold`` evicts their content before each call."""
    cuda_graph: bool = False
    world_size: int = 1
    """The number of processes that run the case at once, as ranks of one group."""

    @property
    def suffix(self) -> str:
        """The text after the case's name, such as `` {cold, graph}``; empty for the default mode."""
        return f" {self.variant}" if self.variant else ""

    @property
    def variant(self) -> str:
        """The text of the mode alone, such as ``{cold, graph}``; empty for the default mode."""
        words = ["cold"] * (self.cache == "cold") + ["graph"] * self.cuda_graph
        words += [f"{self.world_size} ranks"] * (self.world_size > 1)
        return f"{{{', '.join(words)}}}" if words else ""

    @property
    def is_plain(self) -> bool:
        """Whether calls are timed as they follow each other, with warm caches, in however many processes."""
        return self.cache == "warm" and not self.cuda_graph

    def __str__(self) -> str:
        ranks = f" in {self.world_size} ranks" if self.world_size > 1 else ""
        return f"a {self.cache} cache{' in a CUDA graph' if self.cuda_graph else ''}{ranks}"


DEFAULT = Mode()


def identity(case: str, mode: Mode) -> str:
    """Return the name under which a case's numbers are stored: its node id, and its mode unless that is the default."""
    return case + mode.suffix


def without_mode(name: str) -> str:
    """Return the case of an identity, or of a name in a baseline file: the name without its mode."""
    return _MODE.sub("", name)


def without_group(name: str) -> str:
    """Return a node id without the ``@group`` of pytest-xdist; ``""`` if it has none."""
    return name.rpartition("@")[0]


def file_of(case: str) -> str:
    """Return the test file of a case, as node ids name it: ``tests/perf/test_x.py``."""
    return case.partition("::")[0]


def name_in_file(case: str) -> str:
    """Return a case's name within its test file, with parameters and mode: ``TestY::test_z[a-b]``."""
    return case.split("::", 1)[-1]


def test_of(case: str) -> str:
    """Return the test of a case, without parameters: ``tests/perf/test_x.py::TestY::test_z``."""
    file = file_of(case)  # which may lie in a folder ``[old]``
    return file + case[len(file) :].partition("[")[0]


def leaf_of(case: str) -> str:
    """Return the name of a case without its file and classes, with parameters and mode: ``test_z[a-b]``."""
    test = test_of(case)
    return test.rpartition("::")[2] + case[len(test) :]


def parameters_of(case: str) -> str:
    """Return the text of a case's parameters, ``a-b``; ``""`` if it has none."""
    return without_mode(case)[len(test_of(case)) :].removeprefix("[").removesuffix("]")


def function_of(name: str) -> str:
    """Return the test function of a case's name in its file: ``TestY::test_z[a] {cold}`` -> ``TestY::test_z``."""
    return without_mode(name).partition("[")[0].partition("@")[0]
