"""The compiled tier's part of files of the past: readings of results, accepted levels of baselines."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from perflab.results.readings import (
    Amount,
    Level,
    Narrow,
    Numbers,
    Reading,
    WrittenBaselines,
    WrittenResult,
    basis_text,
    exact_readings,
    places_of,
)


class _Resources(Narrow):
    """The resources of a compiled kernel."""

    registers: Amount
    spill_store_bytes: Amount = 0
    spill_load_bytes: Amount = 0
    stack_bytes: Amount = 0
    static_shared_bytes: Amount = 0
    dynamic_shared_bytes: Amount = 0
    warps_per_sm: Amount = 0
    instructions: dict[str, Amount] = {}
    ptxas: str = ""

    def readings(self) -> dict[str, Reading]:
        sizes = {name: getattr(self, name) for name in ("spill_store_bytes", "spill_load_bytes", "stack_bytes")}
        sizes["shared_bytes"] = self.static_shared_bytes + self.dynamic_shared_bytes
        return exact_readings(
            sizes, {"registers": self.registers, "warps_per_sm": self.warps_per_sm, **self.instructions}
        )


class _Stored(_Resources):
    save: str = ""


class _Save(Narrow):
    recorded: str
    triton: str = ""
    reason: str | None = None


class _Now(Narrow):
    triton: str = ""
    resources: _Resources | None = None


class _Compiled(Narrow):
    now: _Now | None = None


def numbers_of(result: WrittenResult) -> Numbers | None:
    """Return the numbers of a compiled kernel; None if it was not compiled."""
    now = msgspec.json.decode(result.outcome, type=_Compiled).now
    if now is None or now.resources is None:
        return None
    where = basis_text({"triton": now.triton, "ptxas": now.resources.ptxas})
    return Numbers(now.resources.readings(), places_of(None, where))


def levels_of(file: WrittenBaselines) -> Iterator[Level]:
    """Yield the accepted levels of a file of kernels."""
    saves = msgspec.json.decode(file.saves, type=dict[str, _Save])
    for name, raw in file.cases.items():
        kernel = msgspec.json.decode(raw, type=_Stored)
        save = saves[kernel.save]
        where = places_of(None, basis_text({"triton": save.triton}))
        yield Level(name, "", where, save.recorded, save.reason, kernel.readings())
