"""Cases of the lab's models as prediction takes them, on fake tensors and on real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from perflab.lab.train import TrainingConfig
from perflab.measure.calls.workload import Step, Workload
from perflab.predicted.cuda.as_cuda import as_cuda
from perflab.predicted.cuda.fake import fake_tensors
from perflab.predicted.prediction import Work
from perflab.predicted.run.predicting import work_of
from tests.perf.setup import Setup
from tests.perf.test_transformer import Built, forward_backward_of, forward_of, step_of

BUILDS: dict[str, Callable[[Setup], Built]] = {
    "forward": forward_of,
    "forward_backward": forward_backward_of,
    "train_step": step_of,
}
HOPPER = (9, 0)


@contextmanager
def on_a_gpu(capability: tuple[int, int] = HOPPER) -> Iterator[None]:
    """As the plugin runs a case that is predicted."""
    with fake_tensors(), as_cuda(capability):
        yield


def setup_of(
    model_name: str = "tiny",
    batch_size: int = 2,
    context_length: int = 64,
    *,
    device: str = "cpu",
    training: dict[str, Any] | None = None,
    **changes: Any,
) -> Setup:
    """A set-up; ``changes`` are of the model."""
    return Setup(
        model_name, batch_size, context_length, torch.device(device), TrainingConfig(**(training or {})), changes
    )


def workload_of(mode: str, setup: Setup) -> Workload:
    """What one call of a case is."""
    built = BUILDS[mode](setup).work
    return Step(**built) if isinstance(built, dict) else Workload(built, (), {})


def work(mode: str, setup: Setup) -> Work:
    """The same as prediction takes it."""
    return work_of(workload_of(mode, setup))
