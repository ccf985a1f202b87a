"""The workloads of the self-test: kinds of four or five cases each.

``mixed`` are unlike each other in what they need of a machine, ``long`` run in one thread for 3 to 150 ms a call, and
``python`` never leaves the interpreter. Mean calls of ``uneven`` are slower in the head; each case slows another share
of its calls. All modules are written to a folder as a user's test modules would be, and in the head's version to the
subfolder CHANGED; the mixed module once for perflab and once for pytest-benchmark.
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

_LONG = '''
import pytest
import torch

torch.manual_seed(0)
torch.set_num_threads(1)


def counting_loop():
    """The interpreter, 3 ms."""
    return lambda: sum(i * i for i in range(50_000))


def tanh_20():
    """Element-wise work that stays in a cache, 10 ms."""
    x = torch.rand(200_000)
    return lambda: [x.tanh() for _ in range(20)][-1]


def matmul_60():
    """Dense products, 40 ms."""
    a = torch.rand(320, 320)
    return lambda: [a @ a for _ in range(60)][-1]


def word_count():
    """Strings and a dictionary, 100 to 150 ms."""

    def count():
        seen = {}
        for i in range(300_000):
            seen[i % 997] = seen.get(i % 997, 0) + len(str(i))
        return len(seen)

    return count


WORK = [counting_loop, tanh_20, matmul_60, word_count]
'''

_PYTHON = """
import json

import pytest


def arithmetic():
    return lambda: sum(i * i & 7 for i in range(30_000))


def dictionaries():
    def fill():
        table = {}
        for i in range(20_000):
            table[i % 997] = table.get(i % 997, 0) + i
        return len(table)

    return fill


def sorting():
    values = [(i * 7919) % 10_007 for i in range(20_000)]
    return lambda: len(sorted(values, key=lambda value: -value))


def documents():
    text = json.dumps([{"name": str(i), "values": list(range(10))} for i in range(500)])
    return lambda: len(json.loads(text))


WORK = [arithmetic, dictionaries, sorting, documents]
"""

_UNEVEN = """
from itertools import count

import pytest

WORK_IN_A_CALL = 30_000


def uneven(every):
    calls = count(1)

    def call():
        sum(i * i for i in range(WORK_IN_A_CALL))
        if MORE and next(calls) % every == 0:
            sum(i * i for i in range(round(MORE * every * WORK_IN_A_CALL)))

    return call


def every_2nd():
    return uneven(2)


def every_4th():
    return uneven(4)


def every_7th():
    return uneven(7)


def every_10th():
    return uneven(10)


def every_100th():
    return uneven(100)


WORK = [every_2nd, every_4th, every_7th, every_10th, every_100th]
"""

_PERF = """

@pytest.mark.perf
@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_gate(perf, work):
    perf(work())
"""

MIXED = "mixed"
UNEVEN = "uneven"
KINDS = {
    MIXED: "test_perf_gate.py",
    "long": "test_perf_long.py",
    "python": "test_perf_python.py",
    UNEVEN: "test_perf_uneven.py",
}
"""The test module of each kind of workloads."""
MORE = 0.05
"""How much slower a mean call of ``uneven`` is in the head, as a share."""
CHANGED = "changed"
"""The folder of the head's modules."""
_BODIES = {MIXED: _BODY, "long": _LONG, "python": _PYTHON, UNEVEN: _UNEVEN}

BENCHMARK_MODULE = (
    _BODY
    + """

@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_gate(benchmark, work):
    benchmark(work())
"""
)


def write_modules(folder: Path) -> None:
    """Write all modules, and a pytest configuration that keeps every other configuration out."""
    for place, more in ((folder, 0.0), (folder / CHANGED, MORE)):
        place.mkdir(exist_ok=True)
        (place / "pytest.ini").write_text("[pytest]\naddopts =\n", encoding="utf-8")
        for kind, module in KINDS.items():
            (place / module).write_text(f"MORE = {more}\n{_BODIES[kind]}{_PERF}", encoding="utf-8")
    (folder / "test_benchmark_gate.py").write_text(BENCHMARK_MODULE, encoding="utf-8")


def name_of(case: str) -> str:
    """Return a case's workload: ``test_perf_gate.py::test_gate[tanh_chain]`` -> ``tanh_chain``."""
    return case.partition("[")[2].rstrip("]")
