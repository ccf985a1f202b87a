"""The cases of the memory study as snapshots: predicted, recorded on a CPU, and by PyTorch's own recorder on CUDA.

One call in a loop's steady state each: forward only (logits, with the graph behind them) or a training step with AdamW.
``python -m tests.studies.memory_study`` makes the page of them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch

from perflab.measure.memory.histories import record_call
from perflab.predicted.cuda.kernels import ON_CUDA
from perflab.predicted.gpus import parse_gpu, roofline_ns
from perflab.predicted.memory.snapshot import write_snapshot
from perflab.predicted.prediction import predict
from tests.correctness.predicted import on_a_gpu, setup_of, work, workload_of

MODES = ("forward", "train_step")
CONTEXT_LENGTHS = (128, 256, 512)
PRECISIONS = ("fp32", "bf16")
BATCH_SIZE = 4
GPU = "h100"
PREDICTED, CPU, CUDA = "predicted", "cpu", "cuda"
MODELS = {PREDICTED: ("tiny", "small", "2.7B"), CUDA: ("tiny", "small", "2.7B"), CPU: ("tiny", "small")}
"""Who can: on fake tensors and over ``nocuda`` any size, on a CPU what a minute is enough for."""
CALLS_BEFORE = {CPU: 0, CUDA: 3}
"""The first makes optimizer state, the second may widen CUDA's cache. On a CPU recording makes one itself."""


class Case(NamedTuple):
    """One call."""

    engine: str
    model: str
    mode: str
    context_length: int
    precision: str

    def file(self, folder: Path) -> Path:
        """Where its snapshot lies."""
        return folder / f"{'-'.join(map(str, self))}.{'json' if self.engine == CPU else 'pickle'}"

    @property
    def title(self) -> str:
        """As ``perflab`` names cases."""
        mode = "step" if self.mode == "train_step" else self.mode
        return f"{mode}[{self.model}-{self.context_length}-{self.precision}]"


def cases(engine: str) -> Iterator[Case]:
    """All of an engine, the smallest model first."""
    for one in product(MODELS[engine], MODES, CONTEXT_LENGTHS, PRECISIONS):
        yield Case(engine, *one)


def make(case: Case, folder: Path) -> Path:
    """Write the case's snapshot, unless it is there."""
    path = case.file(folder)
    if not path.exists():
        (_predict if case.engine == PREDICTED else _record)(case, path.with_suffix(""))
    return path


def _predict(case: Case, path: Path) -> None:
    gpu = parse_gpu(GPU)
    training = {"precision": case.precision}
    with on_a_gpu(divmod(gpu.architecture, 10)):
        setup = setup_of(case.model, BATCH_SIZE, case.context_length, device="cuda", training=training)
        _, found = predict(work(case.mode, setup), gpu, ON_CUDA)
    write_snapshot(
        found.trace, path, workspace_bytes=gpu.workspace_bytes, time_of=lambda op: roofline_ns(op, gpu) or 0.0
    )


def _record(case: Case, path: Path) -> None:
    device = torch.device("cuda", torch.cuda.current_device()) if case.engine == CUDA else torch.device("cpu")
    if case.engine == CUDA:  # as in a process of its own
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
    training = {"precision": case.precision}
    setup = setup_of(case.model, BATCH_SIZE, case.context_length, device=case.engine, training=training)
    workload = workload_of(case.mode, setup)
    for _ in range(CALLS_BEFORE[case.engine]):
        workload.run()
    gc.collect()
    record_call(workload, path, device)
    del workload
    gc.collect()
