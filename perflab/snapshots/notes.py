"""What perflab wrote into a recording of its own: what blocks were for, by pointer, and which module ran. Pure.

A look says of addresses what lies there at a moment: parameters, gradients, optimizer state and so on, and of which
module. It holds for the block that lies there then, from its beginning to its end. What no look says follows from
stacks, as in files of others.
"""

from __future__ import annotations

import json
import reprlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perflab.snapshots.model import Block

BEGIN = b"\nperflab notes 1\n"
"""Stands between the end of PyTorch's pickle and the notes; ``perflab.measure.memory_snapshot`` writes it."""
MOST_BYTES = 2**26
"""JSON is read as a whole."""
_WEAK = "inputs"
"""Said of whatever a callable reaches and nothing else owns, so any other look is believed before."""


@dataclass(frozen=True)
class Look:
    """What lay where at a moment."""

    moment: int
    at: Mapping[int, tuple[str, str]]
    """Category and module, by address."""


@dataclass(frozen=True)
class Notes:
    """Of one recording."""

    looks: Sequence[Look] = ()
    modules: Sequence[tuple[int, str]] = ()
    """From which moment on which module ran; empty: none."""
    events: int = 0
    """Moments of the recording, kept or not."""
    device: int = 0
    """The number of the one that was recorded."""
    returned: tuple[int, frozenset[int]] | None = None
    """When the call had returned, and where its result lay."""

    def since(self, moments: int) -> Notes:
        """The same where so many moments at the beginning were not kept."""
        return replace(
            self,
            looks=[replace(one, moment=one.moment - moments) for one in self.looks if one.moment >= moments],
            modules=[(max(moment - moments, 0), name) for moment, name in self.modules],
            returned=(self.returned[0] - moments, self.returned[1]) if self.returned else None,
        )

    def told(self, blocks: Sequence[Block]) -> list[Block]:
        """Blocks with what the notes say of them."""
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
        """The category of what the call made and its result kept alive: the result, or what is kept for a backward."""
        if self.returned is None or block.freed_at is None:
            return ""
        moment, addresses = self.returned
        if not 0 < block.allocated_at <= moment < block.freed_at:
            return ""
        return "temporaries" if block.address in addresses else "activations"

    def _seen(self, blocks: Sequence[Block]) -> dict[int, tuple[str, str]]:
        """By number of the block."""
        addresses = {address for look in self.looks for address in look.at}
        lying: dict[int, list[int]] = {}
        for number, block in enumerate(blocks):
            if block.address in addresses:
                lying.setdefault(block.address, []).append(number)
        said: dict[int, tuple[str, str]] = {}
        for look in self.looks:
            for address, what in look.at.items():
                for number in lying.get(address, ()):
                    if blocks[number].is_there(look.moment) and said.get(number, (_WEAK,))[0] == _WEAK:
                        said[number] = what
        return said


def notes_of(content: dict[str, Any]) -> Notes:
    """Notes as they are written (``perflab.measure.known_blocks``).

    Raises:
        ValueError, TypeError: they are not.
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
    """The notes behind ``BEGIN``.

    Raises:
        ValueError: they are damaged.
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
