"""The ``memory_snapshot`` fixture in a predicted case: traces the block on fake tensors."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path

from perflab.measure.memory_snapshot import MemorySnapshot
from perflab.predicted.gpus.names import Gpu
from perflab.predicted.gpus.roofline import roofline_ns
from perflab.predicted.memory.account import peak_of


@contextlib.contextmanager
def record_predicted(path: Path, gpu: Gpu) -> Iterator[MemorySnapshot]:
    """Record what a block allocates and frees; times in the file are predicted ones.

    What was there before the block is not known to it, so a block that frees such a tensor does not fall below the
    level that it began at.

    Args:
        path: where to write, without the ending ``.pickle``.
        gpu: what the times are of.

    Raises:
        OSError: the file cannot be written.
    """
    from perflab.predicted.memory.snapshot import write_snapshot
    from perflab.predicted.prediction import ON_CUDA
    from perflab.predicted.trace.modules import ModuleBook
    from perflab.predicted.trace.tracer import Tracer

    snapshot = MemorySnapshot(path.with_name(path.name + ".pickle"))
    tracer = Tracer(ModuleBook(), (), (), ON_CUDA)
    was_on = gc.isenabled()
    gc.disable()  # as while a call is traced: cyclic garbage is let go at no particular moment
    try:
        with tracer.watching():
            yield snapshot
    finally:
        if was_on:
            gc.enable()
    trace = tracer.trace()
    snapshot.peak_bytes = peak_of(trace)
    write_snapshot(trace, path, time_of=lambda op: roofline_ns(op, gpu) or 0.0)
