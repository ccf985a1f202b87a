"""Predicted memory held against CUDA's own peak, where there is a GPU. Shapes: tokens (B, T)."""

from __future__ import annotations

import gc

import pytest
import torch

from perflab.lab.models import MODEL_SIZES
from perflab.measure.machine.devices import available_bytes
from perflab.predicted.cuda.kernels import ON_CUDA
from perflab.predicted.gpus import gpu_by_device_name, parse_gpu
from perflab.predicted.prediction import predict

from .predicted import on_a_gpu, setup_of, work

pytestmark = [pytest.mark.correctness, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

WITHIN = 0.02
CONTEXT_LENGTH = 512


@pytest.mark.parametrize("attention", ["naive", "sdpa", "triton"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", ["forward", "train_step"])
@pytest.mark.parametrize("model_name", MODEL_SIZES)
def test_predicted_memory_is_cudas_own_peak(model_name: str, mode: str, precision: str, attention: str) -> None:
    """``torch.cuda.max_memory_allocated`` of a second call, workspaces of cuBLAS included."""
    device = torch.device("cuda", torch.cuda.current_device())
    gpu = gpu_by_device_name(torch.cuda.get_device_name(device)) or parse_gpu("h100")
    training = {"precision": precision}
    setup = setup_of(model_name, 4, CONTEXT_LENGTH, device=str(device), training=training, attention=attention)
    with on_a_gpu(torch.cuda.get_device_capability(device)):
        now, _ = predict(work(mode, setup), gpu, ON_CUDA)
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    free = available_bytes(device)
    if free is None or now.reserved_bytes > 0.95 * free:
        pytest.skip(f"needs {now.reserved_bytes:,} B of {free:,}")
    before = torch.cuda.memory_allocated(device)
    run = work(mode, setup).run
    run(lambda: None)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    run(lambda: None)
    torch.cuda.synchronize(device)
    measured = torch.cuda.max_memory_allocated(device) - before
    print(f"{model_name} {mode} {precision} {attention}: predicted {now.allocated_bytes:,} B, measured {measured:,} B")
    assert now.allocated_bytes == pytest.approx(measured, rel=WITHIN)
