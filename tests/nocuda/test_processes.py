"""Several devices, other processes, and the tools that look at a process from beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from nocuda import Gpu, library

from .active import child, needs_nocuda, said_by

pytestmark = needs_nocuda


def test_several_devices_have_memory_of_their_own() -> None:
    lines = said_by(
        "import torch, pynvml\n"
        "last = torch.cuda.get_device_properties(3)\n"
        "print(torch.cuda.device_count(), last.name, last.total_memory)\n"
        "x = torch.ones(1 << 20, device='cuda:2')\n"
        "print([torch.cuda.memory_allocated(i) >> 20 for i in range(4)])\n"
        "y = x.to('cuda:1'); print(y.device, torch.cuda.can_device_access_peer(0, 1))\n"
        "with torch.cuda.device(3): print(torch.zeros(1, device='cuda').device)\n"
        "print(len({torch.cuda.get_device_properties(i).uuid for i in range(4)}))\n"
        "pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())\n",
        Gpu(name="NVIDIA L4", devices=4, capability=89, total_bytes=24 << 30),
    )
    assert lines == [f"4 NVIDIA L4 {24 << 30}", "[0, 0, 4, 0]", "cuda:1 True", "cuda:3", "4", "4"]


@pytest.mark.parametrize(
    ("visible", "count"), [("2", 1), ("1,3", 2), ("", 0), ("-1", 0), ("0,9,1", 1), ("9", 0), ("GPU-6e6f,1", 2)]
)
def test_visible_devices_are_those_that_are_named(visible: str, count: int) -> None:
    """In C: what comes after one that is not there is not seen."""
    code = (
        "import ctypes, os\nc = ctypes.CDLL(os.environ['NOCUDA_LIBRARY'])\nn = ctypes.c_int()\n"
        "c.cudaGetDeviceCount(ctypes.byref(n))\nprint(n.value)"
    )
    assert said_by(code, Gpu(devices=4), CUDA_VISIBLE_DEVICES=visible) == [str(count)]


def test_nvml_knows_the_same_device() -> None:
    pynvml = pytest.importorskip("pynvml")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetName(handle) == torch.cuda.get_device_name(0)
    assert pynvml.nvmlDeviceGetUUID(handle) == f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(handle))) == 0
    held = torch.empty(50 << 20, dtype=torch.uint8, device="cuda")
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    free, total = torch.cuda.mem_get_info()
    assert (memory.free, memory.total, memory.used) == (free, total, total - free)
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
    assert torch.cuda.temperature() == 40
    del held


def test_the_profiler_has_a_record_of_each_launch() -> None:
    a = torch.zeros(32, 32, device="cuda")
    library().reset()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        for _ in range(3):
            (a @ a).relu_()
        torch.cuda.synchronize()
    kernels = [one for one in profiled.events() if one.device_type == torch.autograd.DeviceType.CUDA]
    assert len(kernels) == library().launches == 6
    assert sum("clamp_min" in one.name or "relu" in one.name or "launch_clamp" in one.name for one in kernels) == 3
    by_operator = {one.key: one for one in profiled.key_averages()}
    assert by_operator["cudaLaunchKernel"].count >= 3
    assert by_operator["aten::mm"].self_device_time_total > 0


FIRST = """
import torch
from perflab.measure.clocks.clock import HostStopwatch
from perflab.measure.counts.counter import compiler_state
from perflab.measure.counts.counter import CallCounter
from perflab.measurement.measurement import stopwatch_for
from perflab.measure.memory.peak import measure_memory
from perflab.measure.calls.workload import Workload
from perflab.profiles.take import ProfilePlan, take_profile
from perflab.profiles.take_peak import take_peak

def multiply(x):
    return (x @ x).relu_()

def say_nothing(what):
    pass

cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
on_cpu = Workload(multiply, (torch.zeros(32, 32),), {})
"""
THEN = """
print(torch.cuda.is_initialized(), torch._C._cuda_hasPrimaryContext(0))
on_cuda = Workload(multiply, (torch.zeros(32, 32, device=cuda),), {})
counter = CallCounter(cuda, compiler_state())
counter.count_apart(on_cuda)
print(counter.counts.get("kernel_launches"))
profile = take_profile(on_cuda, cuda, stopwatch_for(cuda), ProfilePlan(0.0), say_nothing)
print(sorted({row.operator for row in profile.rows if row.kernel}))
"""


@pytest.mark.parametrize(
    "before",
    [
        "measure_memory(on_cpu, cpu)",
        "take_peak(on_cpu, cpu)",
        "take_profile(on_cpu, cpu, HostStopwatch(), ProfilePlan(0.0), say_nothing)",
    ],
)
def test_a_case_on_a_cpu_leaves_the_device_alone_and_kernels_are_seen_after_it(before: str) -> None:
    assert said_by(FIRST + before + THEN) == ["False False", "2", "['aten::clamp_min_', 'aten::mm']"]


def test_where_a_first_profile_blinded_the_process_nothing_is_counted_and_a_profile_says_why() -> None:
    lines = said_by(
        FIRST
        + "from perflab.base.errors import UsageError\n"
        + "with torch.autograd.profiler.profile(use_kineto=True): multiply(torch.zeros(3, 3))\n"
        + THEN.replace("profile = take", "try:\n    take").partition("print(sorted")[0]
        + "except UsageError as error: print(error.problem)\n"
    )
    assert lines == ["False False", "None", "the profiler saw no kernels on the device"]


TWO = """
import torch
from perflab.measure.clocks.clock import Sample
from perflab.measure.calls.workload import Workload
from perflab.profiles.take import ProfilePlan, take_profile
from perflab.profiles.text import lines

class Halves(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 64, device="cuda:0")
        self.second = torch.nn.Linear(64, 64, device="cuda:1")

    def forward(self, x):
        return self.second(self.first(x).to("cuda:1"))

halves, device = Halves(), torch.device("cuda", 0)
workload = Workload(halves, (torch.zeros(8, 64, device=device),), {})
workload.run()

class OfOneDevice:
    # as the events of one device are where the other works on: far too short
    def time(self, workload, repetitions):
        return Sample(repetitions)

profile = take_profile(workload, device, OfOneDevice(), ProfilePlan(0.0), lambda what: None)
print(profile.timer_ns > 1000, *(line.strip() for line in lines("halves", profile, 200) if "timed by" in line))
print(profile.devices, sorted((row.device, row.module) for row in profile.rows if row.operator == "aten::addmm"))
print({row.device for row in profile.rows if row.category == "host wait"})
print(abs(profile.explained_ns - 2 * profile.profiled_ns) < 10)
print([one.name for one in profile.cuda_calls if one.instances == 2])
print(*(line for line in lines("halves", profile, 200) if "busy" in line))
"""


def test_a_model_on_two_devices_has_two_timelines_in_its_profile() -> None:
    timed, *told, busy = said_by(TWO, Gpu(devices=2))
    assert timed == (
        "True timed by the host's clock, until all 2 devices are idle; the case's own times wait for cuda:0"
    )
    assert told == ["2 [(0, 'first'), (1, 'second')]", "{0, 1}", "True", "['cudaLaunchKernel']"]
    assert "busy: cuda:0 " in busy
    assert " · cuda:1 " in busy


LOADING = """
import json, pathlib, threading, torch
from perflab.measurement.measurement import stopwatch_for
from perflab.measure.calls.workload import Workload
from perflab.profiles.take import ProfilePlan, take_profile
from perflab.profiles.text import lines

device = torch.device("cuda", 0)
model = torch.nn.Linear(64, 64, device=device)
x, batch = torch.zeros(8, 64, device=device), torch.zeros(8, device=device)
asked, loaded = threading.Semaphore(0), threading.Semaphore(0)

def load():
    while True:
        asked.acquire()
        batch.sin_().cos_()
        loaded.release()

def run(x):
    y = model(x)
    asked.release()
    loaded.acquire()
    return y.relu_().sum().backward()

threading.Thread(target=load, daemon=True).start()
workload = Workload(run, (x,), {})
workload.run()
plan = ProfilePlan(0.0, pathlib.Path("files"))
profile = take_profile(workload, device, stopwatch_for(device), plan, lambda what: None)
foreign = [row for row in profile.rows if row.category == "another thread"]
print(sorted((row.kernel.partition("<")[0], row.instances) for row in foreign))
print([row for row in profile.rows if row.category == "other"])
print(abs(profile.explained_ns - profile.profiled_ns) < 10)
own = sum(row.instances for row in profile.rows if row.kernel and row not in foreign)
print(own == sum(one.instances for one in profile.cuda_calls if one.name == "cudaLaunchKernel"))
print(*(line.split()[:2] for line in lines("loading", profile, 200) if line.startswith("  another")))
events = json.loads(pathlib.Path("files.trace.json").read_text())["traceEvents"]
print(sum("sin" in one["name"] and one["pid"] > 0 for one in events))
"""


def test_kernels_that_another_thread_launches_within_a_call_have_rows_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kernel = ("vectorized_elementwise_kernel", 1.0)
    assert said_by(LOADING) == [str([kernel, kernel]), "[]", "True", "True", "['another', 'thread']", "1"]


def test_ranges_stand_in_the_trace_around_what_was_called_in_them(tmp_path: Path) -> None:
    said_by(
        "import torch\n"
        "x = torch.zeros(8, device='cuda')\n"
        "with torch.cuda.nvtx.range('outer'):\n"
        "    torch.cuda.nvtx.mark('here')\n"
        "    x.add_(1)\n"
        "handle = torch.cuda.nvtx.range_start('apart'); torch.cuda.nvtx.range_end(handle)\n",
        NOCUDA_TRACE=str(tmp_path / "trace"),
    )
    lines = (tmp_path / "trace").read_text().splitlines()
    first = lines.index("nvtxRangePush outer")
    assert lines[first + 1] == "nvtxMark here"
    assert lines[first + 2].startswith("launch ")
    assert "CUDAFunctorOnSelf_add" in lines[first + 2]
    assert lines[first + 3 : first + 6] == ["nvtxRangePop", "nvtxRangeStart apart", "nvtxRangeEnd 1"]


def test_a_fork_after_cuda_was_opened_is_pytorchs_own_error() -> None:
    done = child(
        "import os, sys, torch\n"
        "torch.zeros(1, device='cuda')\n"
        "if os.fork() == 0:\n"
        "    try: torch.zeros(1, device='cuda')\n"
        "    except RuntimeError as error: print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    assert "Cannot re-initialize CUDA in forked subprocess" in done.stdout, done.stderr


LOADER = """
import sys, torch

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return torch.full((4,), float(i))

def main():
    torch.zeros(1, device="cuda")
    for context in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(
            Rows(), batch_size=4, num_workers=1, pin_memory=True, multiprocessing_context=context
        )
        print(context, [(batch.is_pinned(), batch.cuda(non_blocking=True)[0, 0].item()) for batch in loader])

if __name__ == "__main__":
    main()
"""


def test_a_loaders_workers_send_pinned_batches(tmp_path: Path) -> None:
    path = tmp_path / "loader.py"
    path.write_text(LOADER)
    code = f"import os, sys; os.execv(sys.executable, [sys.executable, {str(path)!r}])"
    assert said_by(code) == ["fork [(True, 0.0), (True, 4.0)]", "spawn [(True, 0.0), (True, 4.0)]"]


def test_the_children_of_a_process_have_the_library_too() -> None:
    code = "import os; print(os.environ['NOCUDA_LIBRARY'], 'libnocuda.so' in open('/proc/self/maps').read())"
    found = said_by(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])")
    assert found == [f"{os.environ['NOCUDA_LIBRARY']} True"]
