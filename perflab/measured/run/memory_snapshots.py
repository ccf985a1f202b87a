"""Memory snapshots of measured cases: ``--perf-snapshots`` records one more call; a failure lists the new memory.

The snapshot of a case that passes stays as ``*-measured``. The snapshot of a case that fails, or was not judged, is
stored beside it as ``*-measured-now``, and a failure ends with the first lines of ``perflab memory`` for the two.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perflab.base.data import changed
from perflab.base.errors import PerflabError
from perflab.base.identity import identity
from perflab.internals.lookup import switched_off
from perflab.measure.calls.workload import Workload
from perflab.measure.memory.histories import record_call
from perflab.measured.run.state import Learned
from perflab.predicted.settings import Predicting
from perflab.running.case.perf import CaseState
from perflab.running.config.folder import file_name_for, own_place
from perflab.snapshots.difference import compare
from perflab.snapshots.reading import choose_two, read_snapshots
from perflab.snapshots.report import first_changes

if TYPE_CHECKING:
    import torch

_NOW = "-now"


def record_where_asked(
    state: CaseState, workload: Workload, device: torch.device, config: pytest.Config, *, runs_out: bool = False
) -> None:
    """Record one more call of a case that was measured or ran out of memory, if the run records snapshots."""
    if state.settings.part(Predicting).snapshots:
        folder = own_place(config.rootpath, "snapshots")
        name = f"{file_name_for(identity(state.case, state.settings.mode))}-measured"
        learned = state.part(Learned)
        try:
            learned.snapshot = record_call(workload, folder / (name + _NOW), device, runs_out=runs_out).path
        except Exception as error:
            off = switched_off(error)
            if off is None:
                raise
            if learned.measurement is not None:
                known = {**learned.measurement.off, "memory snapshot": off.problem}
                learned.measurement = changed(learned.measurement, off=known)


def with_snapshots(
    failure: str | None, snapshot: Path | None, root: Path, *, is_judged: bool, is_whole: bool = True
) -> str | None:
    """Return a failure's text with the changes from the last good snapshot to this one; None if the case passed.

    Args:
        failure: the text so far; None if the case passed.
        snapshot: the file of the snapshot of the case now; None if there is none.
        root: the folder to which shown paths are relative.
        is_judged: whether the case was compared with anything. Otherwise its snapshot replaces no other one.
        is_whole: whether the call completed. Otherwise no case is compared with its snapshot later.
    """
    if snapshot is None:
        return failure
    good = snapshot.with_name(snapshot.stem.removesuffix(_NOW) + snapshot.suffix)
    if failure is None:
        if is_whole and (is_judged or not good.exists()):
            snapshot.replace(good)
        return None
    now = snapshot.relative_to(root).as_posix()
    if not good.exists():
        return f"{failure}\nmemory: perflab memory {now}"
    try:
        before, after = choose_two(read_snapshots(good), read_snapshots(snapshot), None, (good, snapshot))
    except (PerflabError, OSError) as error:
        return f"{failure}\nmemory: {now}; no comparison with the last good snapshot: {error}"
    changes = first_changes(compare(before, after, (good.name, snapshot.name)))
    return "\n".join([failure, *changes, f"in full: perflab memory {good.relative_to(root).as_posix()} {now}"])
