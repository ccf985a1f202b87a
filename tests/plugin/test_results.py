"""What a measured callable may return: anything that is work done, whatever its shape. Seen from outside."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project


@pytest.fixture
def with_compiler(project: Project, python_with_compiler: str) -> None:
    """Have what jagged tensors import in the processes."""
    project.python = python_with_compiler


LEGAL = """
import torch
from conftest import Virtual

def tick(result=None):
    Virtual.now_ns += 50_000_000
    return result

class Guarded:
    @property
    def __class__(self):
        raise AttributeError("private")
    def __getattr__(self, name):
        raise RuntimeError("not loaded")

class Locked(dict):
    def values(self):
        raise RuntimeError("locked")

def looped():
    knot = [1.0]
    knot.append(knot)
    return knot

def deep():
    inner = [1.0]
    for _ in range(100_000):
        inner = [inner]
    return inner

def strided():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])

def jagged():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)

def sparse():
    return torch.eye(3).to_sparse()

def sparse_rows():
    return torch.eye(3).to_sparse_csr()

def small():
    return torch.ones(4).to(torch.float8_e4m3fn)

def conjugate():
    return torch.ones(4, dtype=torch.complex64).conj()

def empty():
    return torch.ones(0, 3)

def finished():
    numbers = (number for number in range(3))
    sum(numbers)
    return numbers

"""
KINDS = ["Guarded", "Locked", "looped", "deep", "strided", "jagged", "sparse", "sparse_rows"]
KINDS += ["small", "conjugate", "empty", "finished"]


@pytest.mark.usefixtures("with_compiler")
def test_a_result_that_is_no_plain_tensor_or_list_is_legal(project: Project) -> None:
    tests = "".join(f"def test_{kind}(perf):\n    perf(lambda: tick({kind}()))\n\n" for kind in KINDS)
    project.test_file.write_text(LEGAL + tests)
    project.run("--perf-counts=off").assert_outcomes(passed=len(KINDS))


@pytest.mark.usefixtures("with_compiler")
def test_nan_is_found_in_every_kind_of_tensor(project: Project) -> None:
    kinds = {
        "strided": "torch.nested.nested_tensor([torch.ones(2), torch.tensor([math.nan])])",
        "jagged": "torch.nested.nested_tensor([torch.ones(2), torch.tensor([math.nan])], layout=torch.jagged)",
        "sparse": "torch.tensor([0.0, math.nan]).to_sparse()",
        "sparse_rows": "torch.tensor([[0.0, math.nan]]).to_sparse_csr()",
        "small": "torch.tensor([1.0, math.nan]).to(torch.float8_e4m3fn)",
        "conjugate": "torch.tensor([1.0, complex(0, math.nan)]).conj()",
        "half": "torch.tensor([1.0, math.nan]).half()",
        "knot": "knotted(math.nan)",
    }
    knotted = "def knotted(number):\n    knot = [number]\n    knot.insert(0, knot)\n    return knot\n\n"
    tests = "".join(f"def test_{kind}(perf):\n    perf(lambda: tick({text}))\n\n" for kind, text in kinds.items())
    project.test_file.write_text("import math\n" + LEGAL + knotted + tests)
    result = project.run("--perf-counts=off", failed=len(kinds))
    result.stdout.fnmatch_lines([f"*test_{kind}: the measured callable returned NaN*" for kind in kinds])


LAZY = """
import asyncio, concurrent.futures, itertools
from conftest import Virtual

def tick(result=None):
    Virtual.now_ns += 50_000_000
    return result

def numbers():
    yield 1

async def answer():
    return 1

async def stream():
    yield 1

"""


def test_what_is_returned_and_was_never_run_is_refused_by_name(project: Project) -> None:
    kinds = {
        "generator": "numbers()",
        "coroutine": "answer()",
        "async_generator": "stream()",
        "map": "map(abs, [1])",
        "filter": "filter(None, [1])",
        "zip": "zip([1])",
        "chain": "itertools.chain([1])",
        "Future": "concurrent.futures.Future()",
    }
    tests = "".join(f"def test_{kind}(perf):\n    perf(lambda: tick({text}))\n\n" for kind, text in kinds.items())
    project.test_file.write_text(LAZY + tests)
    for way in ("-mperf", "--perf-disable"):
        result = project.run("-q", way, failed=len(kinds))
        result.stdout.fnmatch_lines(
            [f"*test_{kind}: the measured callable returned a* {kind} * was never run*" for kind in kinds]
        )
        result.stdout.fnmatch_lines(["*-> consume it in the callable: perf(lambda: list(*"])
        result.stdout.fnmatch_lines(["*-> pass the coroutine function itself*perf(fn, x)*"])
        result.stdout.fnmatch_lines(["*-> wait for it in the callable: *.result()*"])


THREADS = """
import queue, threading, time
from concurrent.futures import ThreadPoolExecutor

def busy(seconds):
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass

def test_not_joined(perf):
    started = []
    def call():
        if len(started) < 10:
            started.append(threading.Thread(target=busy, args=(0.05,), name="loader", daemon=True))
            started[-1].start()
        busy(0.01)
    perf(call)
    for thread in started:
        thread.join()

def test_handed_on(perf):
    jobs = queue.SimpleQueue()
    def work():
        while True:
            job = jobs.get()
            if job is None:
                return
            busy(job)
    worker = threading.Thread(target=work, name="writer", daemon=True)
    worker.start()
    def call():
        jobs.put(0.02)
        busy(0.005)
    perf(call)
    jobs.put(None)
    worker.join()

def test_joined(perf):
    def call():
        thread = threading.Thread(target=busy, args=(0.005,))
        thread.start()
        thread.join()
    perf(call)

def test_pool(perf):
    with ThreadPoolExecutor(2) as pool:
        perf(lambda: list(pool.map(busy, [0.005] * 2)))

def test_pool_of_each_call(perf):
    def call():
        list(ThreadPoolExecutor(2).map(busy, [0.005] * 2))
    perf(call)
"""


def test_a_thread_that_runs_on_when_a_call_has_returned_is_named(project: Project) -> None:
    project.pytester.makeconftest("")  # real time
    project.test_file.write_text(THREADS)
    result = project.run("--perf-budget=0.4", "--perf-counts=off", "-v", passed=5)
    result.stdout.re_match_lines(
        [
            r"not_joined .* new",
            r".*thread 'loader' ran on after a call; the time excludes that work",
            r"handed_on .* new",
            r".*thread 'writer' ran on after a call; the time excludes that work",
            r"joined .* new",
        ]
    )
    assert str(result.stdout).count("ran on after a call") == 2
