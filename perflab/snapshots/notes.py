"""Perflab's notes in its own recordings: categories of blocks, known by pointer, and the module that ran. Pure.

A look lists what lies at some addresses at a moment: parameters, gradients, optimizer state and so on, each with its
module. An entry holds for the block that is alive at the address at that moment, over the block's whole life. The
categories of other blocks are deduced from call stacks, as in files that perflab did not write.
"""

from __future__ import annotations

import json
import reprlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perflab.base.grouping import groups_of
from perflab.snapshots.model import Block

BEGIN = b"\nperflab notes 1\n"
"""The separator between PyTorch's pickle and the notes, written by ``perflab.measure.memory.histories``."""
MOST_BYTES = 2**26
"""The most bytes of notes that are read; the notes' JSON is read as a whole."""
_WEAK = "inputs"
"""The category of memory that a callable reaches and nothing else owns; any other category takes precedence."""


@dataclass(frozen=True)
class Look:
    """The memory at some addresses at a moment."""

    moment: int
    at: Mapping[int, tuple[str, str]]
    """Category and module of the memory, by address."""


@dataclass(frozen=True)
class Notes:
    """Perflab's notes on one recording."""

    looks: Sequence[Look] = ()
    modules: Sequence[tuple[int, str]] = ()
    """The moment from which on each module ran, and the module's name; an empty name: no module ran."""
    events: int = 0
    """The number of moments of the recording, including those that the recorder did not keep."""
    device: int = 0
    """The number of the device that was recorded."""
    returned: tuple[int, frozenset[int]] | None = None
    """The moment at which the call had returned, and the addresses of its result."""

    def since(self, moments: int) -> Notes:
        """Return the notes for a recording without its first ``moments`` moments."""
        return replace(
            self,
            looks=[replace(one, moment=one.moment - moments) for one in self.looks if one.moment >= moments],
            modules=[(max(moment - moments, 0), name) for moment, name in self.modules],
            returned=(self.returned[0] - moments, self.returned[1]) if self.returned else None,
        )

    def told(self, blocks: Sequence[Block]) -> list[Block]:
        """Return the blocks with the categories and modules that the notes give."""
        if not self.looks and not self.modules:
            return list(blocks)
        seen = self._seen(blocks)
        found = [
            block if number in seen else block._replace(category=self._let_go_with_result(block) or block.category)
            for number, block in enumerate(blocks)
        ]
        for number, (category, module) in seen.items():
            found[number] = found[number]._replace(category=category, module=module or found[number].module)
        starts = [moment for moment, _ in self.modules]
        for number, block in enumerate(found):
            ran = bisect_left(starts, block.allocated_at) - 1 if block.allocated_at else -1
            if ran >= 0 and not block.module:
                found[number] = block._replace(module=self.modules[ran][1])
        return found

    def _let_go_with_result(self, block: Block) -> str:
        """Return the category of a block that the call made and that was freed after the call had returned.

        The result itself is ``temporaries``; a block kept for a backward is ``activations``. Empty: any other block.
        """
        if self.returned is None or block.freed_at is None:
            return ""
        moment, addresses = self.returned
        if not 0 < block.allocated_at <= moment < block.freed_at:
            return ""
        return "temporaries" if block.address in addresses else "activations"

    def _seen(self, blocks: Sequence[Block]) -> dict[int, tuple[str, str]]:
        """Return category and module of each block that a look lists, by the block's number."""
        addresses = {address for look in self.looks for address in look.at}
        noted = (number for number, block in enumerate(blocks) if block.address in addresses)
        lying = groups_of(noted, lambda number: blocks[number].address)
        said: dict[int, tuple[str, str]] = {}
        for look in self.looks:
            for address, what in look.at.items():
                for number in lying.get(address, ()):
                    if blocks[number].is_there(look.moment) and said.get(number, (_WEAK,))[0] == _WEAK:
                        said[number] = what
        return said


def notes_of(content: dict[str, Any]) -> Notes:
    """Read notes from content in the form that ``perflab.measure.memory.histories`` writes.

    Raises:
        ValueError, TypeError: the content has another form.
    """
    looks = []
    for moment, parts in content["looks"]:
        at = {}
        for address, category, module in parts:
            if type(address) is not int or type(category) is not str or type(module) is not str:
                raise ValueError(f"a look says {reprlib.repr([address, category, module])}")
            at[address] = category, module
        looks.append(Look(_count(moment), at))
    returned = None
    if "returned" in content:
        moment, addresses = content["returned"]
        returned = _count(moment), frozenset(map(_count, addresses))
    modules = [(_count(moment), str(name)) for moment, name in content.get("modules", ())]
    return Notes(looks, modules, returned=returned)


def notes_of_json(text: bytes) -> Notes:
    """Read the notes that follow ``BEGIN``.

    Raises:
        ValueError: the notes are damaged.
    """
    try:
        content = json.loads(text)
        return replace(notes_of(content), events=_count(content["events"]), device=_count(content["device"]))
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{reprlib.repr(value)} is no count")
    return value
