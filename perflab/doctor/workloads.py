"""The code that the gate is tried on: four cases, unlike each other in what they need of a machine.

They are written to a folder as a user's test module would be, once for perflab and once for pytest-benchmark.
"""

from __future__ import annotations

from pathlib import Path

_BODY = '''
import pytest
import torch

from perflab.lab.models import build_model

torch.manual_seed(0)


def tanh_chain():
    """Element-wise work: bandwidth, and a fresh block of memory for each result."""
    x = torch.rand(1_000_000)
    return lambda: x.tanh().tanh().tanh().tanh()


def matmul_chain():
    """Dense products on all cores."""
    a = torch.rand(384, 384)
    return lambda: a @ a @ a @ a


def python_loop():
    """The interpreter alone, in one thread."""
    return lambda: sum(i * i for i in range(100_000))


def tiny_forward():
    """A whole model, small enough that what launches its operators costs as much as they do."""
    model = build_model("tiny", vocab_size=10_000, context_length=128).eval()
    tokens = torch.randint(0, 10_000, (4, 128))

    def forward():
        with torch.inference_mode():
            return model(tokens)

    return forward


WORK = [tanh_chain, matmul_chain, python_loop, tiny_forward]
'''

PERF_MODULE = (
    _BODY
    + """

@pytest.mark.perf
@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_gate(perf, work):
    perf(work())
"""
)

BENCHMARK_MODULE = (
    _BODY
    + """

@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_gate(benchmark, work):
    benchmark(work())
"""
)

NAMES = ("tanh_chain", "matmul_chain", "python_loop", "tiny_forward")


def write_modules(folder: Path) -> None:
    """Write both modules, and a configuration that keeps every other one out."""
    (folder / "pytest.ini").write_text("[pytest]\naddopts =\n", encoding="utf-8")
    (folder / "test_perf_gate.py").write_text(PERF_MODULE, encoding="utf-8")
    (folder / "test_benchmark_gate.py").write_text(BENCHMARK_MODULE, encoding="utf-8")


def name_of(case: str) -> str:
    """``test_perf_gate.py::test_gate[tanh_chain]`` -> ``tanh_chain``."""
    return case.partition("[")[2].rstrip("]")
