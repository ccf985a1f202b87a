"""What tests of predictions share: fake tensors as on CUDA, and a callable as prediction takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from perflab.measure.workload import Step, Workload
from perflab.plugin.predicting import work_of
from perflab.predict.as_cuda import as_cuda
from perflab.predict.fake import fake_tensors
from perflab.predict.prediction import Work


@contextmanager
def on_fake_cuda(capability: tuple[int, int] = (9, 0)) -> Iterator[None]:
    """Tensors are fake within, and PyTorch does as it would on such a GPU."""
    with fake_tensors(), as_cuda(capability):
        yield


def work(made: Callable[[], Any] | dict[str, Any]) -> Work:
    """A callable without arguments, or the phases of `perf.step`."""
    return work_of(Step(**made) if isinstance(made, dict) else Workload(made, (), {}))
