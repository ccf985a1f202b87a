"""Reads the names of ranges that PyTorch (``emit_nvtx``) and perflab open. Pure.

PyTorch writes ``aten::mm, seq = 5, op_id = 6, sizes = [[8, 16], [16, 4]], input_op_ids = [(2,0), (0,-1)]``. The parts
were added over the years; each may be missing.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import NamedTuple

from perflab.attribution.places import Where
from perflab.measure.calls.nvtx import MEMORY, OPERATORS, SAMPLES, WARM_UP
from perflab.profiles.events import NODE
from perflab.profiles.operator_ranges import AT, BETWEEN

NOT_OPERATOR = (
    "instr({0}, ', op_id = ') = 0 AND instr({0}, ', seq = ') = 0 AND {0} NOT GLOB 'aten::*'"
    " AND {0} NOT GLOB 'autograd::engine::evaluate_function: *'"
)
"""The SQL condition for a range's name that somebody chose, in contrast to a name that PyTorch wrote.
``Named.is_operator`` and ``place_or_node`` classify a name as text."""
_PASS = re.compile(rf"(.+): ({WARM_UP}|{SAMPLES}|{MEMORY}|{OPERATORS})", re.DOTALL)


class Named(NamedTuple):
    """The parts of a range's name."""

    name: str
    sequence: int = -1
    sizes: str = ""
    """Shapes of the inputs as PyTorch writes them; ``""``: somebody's own range, or a frame of autograd's engine."""

    @property
    def is_operator(self) -> bool:
        """Whether PyTorch opened the range for an operator, in contrast to a range that somebody named."""
        return bool(self.sizes) or self.sequence >= 0 or "::" in self.name.partition(" ")[0]


def named(text: str) -> Named:
    """Split a range's name into parts."""
    rest = text.partition(", input_op_ids = ")[0]
    rest, _, sizes = rest.partition(", sizes = ")
    rest = _without_number(rest, ", op_id = ")[0]
    name, sequence = _without_number(rest, ", seq = ")
    return Named(name, sequence, sizes)


def _without_number(text: str, before: str) -> tuple[str, int]:
    start, found, number = text.rpartition(before)
    return (start, int(number)) if found and number.isdecimal() else (text, -1)


@lru_cache(maxsize=65536)
def shapes_of(sizes: str) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of an operator's inputs; ``()`` for an input that is no tensor."""
    try:
        found = json.loads(sizes)
    except ValueError:
        return ()
    if not isinstance(found, list):
        return ()
    return tuple(
        tuple(one) if isinstance(one, list) and all(isinstance(size, int) for size in one) else () for one in found
    )


@lru_cache(maxsize=65536)
def place_or_node(name: str) -> tuple[Where | None, str | None]:
    """Return the module and line of a range of perflab's, and the backward node of a frame of autograd's engine.

    None: the name is not of such a range.
    """
    module, _, line = name.removeprefix(AT).partition(BETWEEN)
    place = Where(module, line) if name.startswith(AT) else None
    return place, name.removeprefix(NODE) if name.startswith(NODE) else None


def case_and_pass(name: str) -> tuple[str, str] | None:
    """Split ``test_step[small]: samples`` into the case and ``samples``; None: the name is of another range."""
    found = _PASS.fullmatch(name)
    return (found[1], found[2]) if found else None
