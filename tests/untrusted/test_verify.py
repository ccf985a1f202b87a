"""``perflab verify`` as its user runs it, and what its parts refuse."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch
from torch.autograd import DeviceType

from perflab.base.errors import PerflabError
from perflab.untrusted import kernelbench
from perflab.untrusted.command import held, line_of, told
from perflab.untrusted.confine import readable
from perflab.untrusted.errors import RefusedError
from perflab.untrusted.judge import Terms, judge, least_bytes, product_ns, refuse_beyond_hardware
from perflab.untrusted.kernelbench import sliced
from perflab.untrusted.messages import Looked
from perflab.untrusted.records import Finding, Judged, Reason
from perflab.untrusted.worker import looked_at

REFERENCE = """
import torch
def softmax(x):
    return torch.softmax(x, -1)
def inputs(seed):
    return {"x": torch.randn(128, 256, generator=torch.Generator().manual_seed(seed))}
def both(x):
    return x.softmax(-1), x.argmax(-1)
"""
CANDIDATES = """
import time
import torch
def right(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)
def slow(x):
    time.sleep(0.02)
    return torch.softmax(x, -1)
def overflows(x):
    e = x.exp()
    return e / e.sum(-1, keepdim=True)
def in_place(x):
    return x.copy_(torch.softmax(x, -1))
def both(x):
    return right(x), x.argmax(-1)
"""
PROBLEM = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.layer = nn.Linear(size, size)
    def forward(self, x):
        return torch.relu(self.layer(x))
SIZE = 32
def get_inputs():
    return [torch.rand(16, SIZE)]
def get_init_inputs():
    return [SIZE]
"""
NEW = """
class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.layer = nn.Linear(size, size)
    def forward(self, x):
        {forward}
"""


def verify(python: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "candidates.py").write_text(CANDIDATES)
    program = [python] if python.endswith("perflab") else [python, "-m", "perflab"]
    command = [*program, "verify", "--device=cpu", "--limit=60", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def against_softmax(python: str, folder: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    against = ("--against=reference:softmax", "--inputs=reference:inputs", "--budget=1")
    return verify(python, folder, f"candidates:{name}", *against, *arguments)


def test_a_right_candidate_is_accepted_and_a_file_has_its_line(tmp_path: Path, python: str) -> None:
    found = against_softmax(python, tmp_path, "right", "--json=out.jsonl")
    assert found.returncode == 0 or "slower" in found.stdout, found
    told = json.loads((tmp_path / "out.jsonl").read_text())
    assert told["name"] == "candidates:right"
    assert told["finding"] in ("ok", "can't tell", "slower")
    assert told["checked"] >= 5
    assert told["operators"]["aten::exp"] == 1
    assert told["allocations"] == 5, found
    assert told["threads"] >= 1
    assert [one["rival"] for one in told["ratios"]] == ["reference:softmax"]


def test_a_slow_candidate_is_slower_and_one_for_small_values_is_wrong(tmp_path: Path, python: str) -> None:
    # Some hundred times slower: decided after a few pairs, and none of them may take all the time.
    found = against_softmax(python, tmp_path, "slow", "--budget=10")
    assert found.returncode == 1, found
    assert "candidates:slow: slower" in found.stdout
    assert "as the reference does: aten::_softmax" in found.stdout
    found = verify(
        python,
        tmp_path,
        "candidates:overflows",
        "--against=reference:softmax",
        "--inputs=reference:inputs",
        "--budget=1",
    )
    assert found.returncode in (0, 1)  # right up to values of 8 times four
    text = (tmp_path / "reference.py").read_text().replace("torch.randn(", "30 * torch.randn(")
    (tmp_path / "large.py").write_text(text)
    found = verify(
        python, tmp_path, "candidates:overflows", "--against=large:softmax", "--inputs=large:inputs", "--budget=1"
    )
    assert "wrong: wrong result" in found.stdout, found
    assert found.returncode == 1


def test_files_named_like_modules_run_in_no_process_but_the_candidate_s(tmp_path: Path) -> None:
    for name in ("msgspec", "resource", "getpass", "statistics", "sympy"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise ImportError")
    found = against_softmax(f"{Path(sys.executable).parent / 'perflab'}", tmp_path, "right", "--budget=0.2")
    assert "wrong" not in found.stdout, found
    assert "calls checked" in found.stdout, found
    assert not (tmp_path / "ran").exists()


def test_writing_to_inputs_has_to_be_declared(tmp_path: Path, python: str) -> None:
    found = against_softmax(python, tmp_path, "in_place")
    assert "wrong: changed its inputs" in found.stdout, found
    assert "it changed x" in found.stdout
    found = against_softmax(python, tmp_path, "in_place", "--in-place")
    assert "wrong" not in found.stdout, found


def test_several_outputs_are_compared(tmp_path: Path, python: str) -> None:
    found = verify(
        python, tmp_path, "candidates:both", "--against=reference:both", "--inputs=reference:inputs", "--budget=0.5"
    )
    assert "wrong" not in found.stdout, found
    found = verify(
        python, tmp_path, "candidates:right", "--against=reference:both", "--inputs=reference:inputs", "--budget=0.5"
    )
    assert "it returned 1 outputs, wanted 2" in found.stdout


def test_unusable_arguments_name_the_remedy(tmp_path: Path, python: str) -> None:
    assert "name a candidate" in verify(python, tmp_path).stderr
    assert "name what is right" in verify(python, tmp_path, "candidates:right").stderr
    found = verify(python, tmp_path, "reference:both", "--against=reference:softmax", "--inputs=reference:inputs")
    assert found.returncode == 2
    assert "put the candidate in a file of its own" in found.stderr
    found = verify(python, tmp_path, "candidates:right", "--against=reference:none", "--inputs=reference:inputs")
    assert "importable from here" in found.stderr
    found = verify(python, tmp_path, "candidates:absent", "--against=reference:softmax", "--inputs=reference:inputs")
    assert "wrong: does not compile" in found.stdout
    assert "has no attribute 'absent'" in found.stdout


def test_a_folder_is_judged_line_by_line_and_one_that_breaks_stops_none(tmp_path: Path, python: str) -> None:
    folder = tmp_path / "candidates"
    folder.mkdir()
    for name, forward in {
        "a_right": "return self.layer(x).clamp(min=0)",
        "b_wrong": "return self.layer(x)",
        "c_exits": "import os; os._exit(0)",
        "d_reference": "return Model.forward(self, x)",
        "e_memory": "return torch.empty(1 << 45)",
    }.items():
        (folder / f"{name}.py").write_text(PROBLEM + NEW.format(forward=forward))
    (folder / "f_syntax.py").write_text("class ModelNew(")
    (folder / "g_no_problem.py").write_text("import torch.nn as nn" + NEW.format(forward="return x + 1"))
    found = verify(python, tmp_path, f"--batch={folder}", "--budget=1")
    told = {one["name"]: (one["finding"], one.get("reason", "")) for one in map(json.loads, found.stdout.splitlines())}
    assert told.pop("a_right")[0] in ("ok", "can't tell", "slower"), found
    assert told == {
        "b_wrong": ("wrong", "wrong result"),
        "c_exits": ("wrong", "crash"),
        "d_reference": ("wrong", "raised"),
        "e_memory": ("wrong", "out of memory"),
        "f_syntax": ("wrong", "does not compile"),
        "g_no_problem": ("can't tell", "not judged"),
    }
    assert found.returncode == 1
    problems = tmp_path / "problems"
    problems.mkdir()
    (problems / "g_no_problem.py").write_text(PROBLEM)
    for other in folder.glob("[a-f]*.py"):
        other.unlink()
    found = verify(python, tmp_path, f"--batch={folder}", f"--against={problems}", "--budget=0.5")
    assert '"wrong result"' in found.stdout, found
    assert "no file defines ModelNew" in verify(python, tmp_path, f"--batch={problems}").stderr


def test_files_that_are_made_to_break_a_batch_have_their_lines(tmp_path: Path, python: str) -> None:
    folder, problems = tmp_path / "candidates", tmp_path / "problems"
    for one in (folder, problems):
        one.mkdir()
    (folder / "a_link.py").symlink_to("nowhere")
    os.mkfifo(folder / "b_pipe.py")
    (folder / "c_folder.py").mkdir()
    new = PROBLEM + NEW.format(forward="return self.layer(x).clamp(min=0)")
    for name, more in {
        "d_large": "#" * (1 << 20),
        "e_signs": f"x = {'-' * 200_000}1",
        "f_sums": f"x = 1{'+1' * 60_000}",
        "g_null": chr(0),
        "h_right": "",
    }.items():
        (folder / f"{name}.py").write_text(new + more)
        (problems / f"{name}.py").write_text(PROBLEM)
    found = verify(python, tmp_path, f"--batch={folder}", f"--against={problems}", "--budget=0.2")
    told = {one["name"]: (one["finding"], one.get("reason", "")) for one in map(json.loads, found.stdout.splitlines())}
    assert told.pop("h_right")[0] in ("ok", "can't tell", "slower", "suspicious"), found
    assert len(told) == 7
    assert set(told.values()) == {("wrong", "does not compile")}, told


def test_an_error_in_judging_one_candidate_is_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        (tmp_path / f"{name}.py").write_text(PROBLEM + NEW.format(forward="return x"))
    errors = [PerflabError("no memory of it", "look"), ZeroDivisionError("by zero")]
    monkeypatch.setattr(kernelbench, "judge", lambda *_: (_ for _ in ()).throw(errors.pop(0)))
    with held("cpu", 30.0, [], []) as holding:
        found = list(kernelbench.judge_folder(tmp_path, None, holding, Terms(budget_s=1), print))
    assert [(one.finding, one.reason, one.text.splitlines()[0]) for one in found] == [
        (Finding.UNKNOWN, Reason.UNJUDGED, "no memory of it"),
        (Finding.UNKNOWN, Reason.UNJUDGED, "ZeroDivisionError: by zero"),
    ]
    assert not any(one.is_accepted for one in found)


def test_a_long_chain_of_names_is_sliced_in_linear_time() -> None:
    text = "x0 = 0\n" + "".join(f"x{number} = x{number - 1}\n" for number in range(1, 60_000))
    began_s = time.process_time()
    assert len(sliced(text, ["x59999"]).splitlines()) == 60_000
    many = ", ".join(f"x{number}" for number in range(60_000))
    assert sliced(f"({many}) = ({many})", ["x0"])
    assert time.process_time() - began_s < 15  # quadratic: minutes


def test_a_line_of_json_has_no_sign_that_a_terminal_obeys() -> None:
    judged = Judged(name="a\x9b2J\u2028\u202e", finding=Finding.WRONG, text="\x1b[2J é")
    assert line_of(judged).isascii()
    assert line_of(judged).isprintable()
    assert json.loads(line_of(judged)) == {"name": judged.name, "finding": "wrong", "text": judged.text}


def test_a_module_is_sliced_by_names() -> None:
    text = (
        "import os\nimport torch\nN = 3\nM = N + 1\nos.remove('x')\nclass A:\n    n = M\nclass B(A):\n    t = torch\n"
    )
    lines = [line for line in sliced(text, ["A"]).splitlines() if line]
    assert lines == ["N = 3", "M = N + 1", "class A:", "    n = M"]
    assert "class A" not in sliced(text, ["B"], without=("A",))
    assert "os.remove" in sliced(text, ["B"], without=("A",))


def test_folders_with_secrets_are_replaced_by_their_entries(tmp_path: Path) -> None:
    for name in ("open/a.py", "mixed/b.py", "mixed/secret.py", "mixed/deep/c.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()
    found, listed = readable([tmp_path], [tmp_path / "mixed" / "secret.py"])
    assert sorted(found) == [tmp_path / "mixed" / "b.py", tmp_path / "mixed" / "deep", tmp_path / "open"]
    assert listed == [tmp_path, tmp_path / "mixed"]


CONFINED = """
import ctypes, os, socket, subprocess, sys, threading
from pathlib import Path
from perflab.untrusted.confine import confine, narrow, python_folders
folder, secret = Path(sys.argv[1]), Path(sys.argv[2])
found = {}
def tried(name, what):
    try:
        what()
        found[name] = True
    except OSError:
        found[name] = False
missing = confine([*python_folders()], [], [folder])
tried("write", (folder / "mine").touch)
tried("read secret", secret.read_text)
tried("write secret", lambda: secret.write_text("x"))
tried("truncate secret", lambda: os.truncate(secret, 0))
tried("remove secret", secret.unlink)
tried("link secret", lambda: os.link(secret, folder / "link"))
tried("network", lambda: socket.socket(socket.AF_INET))
tried("local socket", lambda: socket.socketpair())
tried("memory", lambda: Path(f"/proc/{os.getppid()}/mem").read_bytes())
tried("signal", lambda: os.kill(os.getppid(), 0))
tried("program", lambda: subprocess.run(["true"], check=True))
missing += narrow()
tried("thread", lambda: threading.Thread(target=int).start())
tried("program later", lambda: subprocess.run(["true"]))
tried("fork later", os.fork)
print(missing, {name for name, can in found.items() if can} == {"write", "local socket", "program", "thread"}, found)
"""


def test_a_confined_process_can_do_what_it_needs_and_nothing_else(tmp_path: Path) -> None:
    if ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) < 6:
        pytest.skip("this kernel's Landlock is older than version 6")
    secret, folder = tmp_path / "secret", tmp_path / "own"
    secret.write_text("42")
    folder.mkdir()
    command = [sys.executable, "-c", CONFINED, str(folder), str(secret)]
    found = subprocess.run(command, capture_output=True, text=True, env={**os.environ}, cwd="/")
    assert found.stdout.startswith("[] True"), found
    assert secret.read_text() == "42"


REFUSED = """
import ctypes, errno, os, sys
from pathlib import Path
from perflab.untrusted.confine import confine, python_folders
confine([*python_folders()], [], [Path(sys.argv[1])])
libc = ctypes.CDLL(None, use_errno=True)
own = os.open(sys.argv[1] + "/own", os.O_CREAT | os.O_RDWR)
calls = [(number, 0, 0, 0) for number in (197, 198, 199, 463, 466, 469, 248, 249, 250)]
calls += [(16, own, command, 0) for command in (0x40086602, 0x401C5820, 0x40806685)]
calls += [(157, 4, 0, 0), (157, 22, 2, 0), (317, 1, 0, 0), (317, 1, 1, 0)]
print([call for call in calls if libc.syscall(*call, 0, 0) != -1 or ctypes.get_errno() != errno.EPERM])
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86-64")
def test_calls_that_reach_others_files_keys_and_the_filter_are_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-c", REFUSED, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert found.stdout.strip() == "[]", found


def test_inputs_keep_their_layouts_on_their_way(tmp_path: Path) -> None:
    from perflab.untrusted.messages import Entry, Role
    from perflab.untrusted.stranger import Source, Stranger

    (tmp_path / "layouts.py").write_text(
        "import torch\ndef told(*xs):\n"
        "    return [torch.tensor([*x.stride(), x.storage_offset()]) for x in xs] + [xs[0] * 1]"
    )
    x = torch.arange(24.0).reshape(4, 6)
    inputs = [x.T, x[1:, 2:], x[:, :1].expand(4, 3), x.bfloat16(), torch.empty(0, 3), torch.tensor([True, False])]
    with (
        held("cpu", 30.0, [tmp_path], []) as holding,
        Stranger(Role.CANDIDATE, Source("layouts", Entry(name="layouts:told")), holding) as one,
    ):
        told = [one.result(at) for at in one.span([inputs]).outputs[0]]
    for tensor, found in zip(inputs[:4], told, strict=False):
        assert found is not None
        assert found.tolist() == [*tensor.stride(), tensor.storage_offset()]
    assert told[-1] is not None
    assert torch.equal(told[-1], x.T)


def test_a_problem_with_a_python_number_among_its_inputs_is_judged(tmp_path: Path) -> None:
    problem = (
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, factor, x):\n        return factor * x\n"
        "def get_inputs():\n    return [3.5, torch.randn(8, 8)]\ndef get_init_inputs():\n    return []\n"
    )
    right = "class ModelNew(torch.nn.Module):\n    def forward(self, factor: float, x):\n        return x * factor\n"
    found = {}
    with held("cpu", 60, [], [tmp_path]) as holding:
        for name, text in {"right": right, "wrong": right.replace("* factor", "* 3")}.items():
            case, source = kernelbench._case(name, problem + text, problem)
            found[name] = judge(source, replace(case, rivals=()), holding)
    assert found["right"].finding is Finding.OK
    assert (found["wrong"].finding, found["wrong"].reason) == (Finding.WRONG, Reason.RESULT)


def test_a_model_whose_function_closes_over_its_layers_is_judged(tmp_path: Path) -> None:
    problem = PROBLEM.replace("self.layer = nn.Linear(size, size)", LAMBDA).replace("self.layer(x)", "self.layered(x)")
    found = {}
    with held("cpu", 60, [], [tmp_path]) as holding:
        for name, forward in {"right": "self.layer(x).clamp(min=0)", "wrong": "self.layer(x)"}.items():
            case, source = kernelbench._case(name, problem + NEW.format(forward=f"return {forward}"), problem)
            found[name] = judge(source, replace(case, rivals=()), holding).finding
    assert found == {"right": Finding.OK, "wrong": Finding.WRONG}


LAMBDA = """layer = self.layer = nn.Linear(size, size)
        self.layered = lambda x: layer(x)"""


class Seen:
    """An event as kineto tells it, and a profile of such events."""

    def __init__(self, activity: str, start_ns: int = 0, end_ns: int = 0, name: str = "", **told: int) -> None:
        self.activity_type, self.name = lambda: activity, lambda: name
        self.start_ns, self.end_ns = lambda: start_ns, lambda: end_ns
        self.device_resource_id = lambda: told.get("stream", 7)
        self.correlation_id = lambda: told.get("call", 0)
        self.nbytes = lambda: told.get("size", 0)
        self.device_type = lambda: DeviceType.CUDA if "on_device" in told else DeviceType.CPU


def test_a_profile_tells_kernels_streams_graphs_blocks_and_the_span_of_the_device_s_work() -> None:
    host = (
        Seen("cpu_op", 0, 900),
        Seen("cuda_runtime", 10, 2_000, "cudaGraphLaunch", call=3),
        Seen("cuda_driver", 20, 1_900, "cuGraphLaunch", call=3),
        Seen("cuda_runtime", 10, 2_000, "cudaGraphLaunch", call=4),
        Seen("gpu_user_annotation", 5, 5_000),
        Seen("cpu_instant_event", 5, 5, "[memory]", size=64),
        Seen("cpu_instant_event", 6, 6, "[memory]", size=512, on_device=1),
        Seen("cpu_instant_event", 7, 7, "[memory]", size=-512, on_device=1),
        Seen("cpu_instant_event", 8, 8, "[memory]", size=1024, on_device=1),
    )
    work = (
        Seen("kernel", 400, 700, "void at::native::mine<4>(int)"),
        Seen("gpu_memcpy", 100, 200, "Memcpy HtoD", stream=9),
        Seen("kernel", 300, 1_200, "mine<4>", stream=8),
        Seen("gpu_memset", 1, 2),
    )
    both = SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: [*host, *work]))
    assert looked_at(both, "cuda") == Looked(
        kernels={"mine<4>": 2}, streams=2, graphs=2, allocations=2, device_ns=1_199
    )
    host_alone = SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: host))
    assert looked_at(host_alone, "cpu") == Looked(graphs=2, allocations=1)


def test_a_judgement_tells_what_ran() -> None:
    ran = Looked(
        operators={"aten::empty": 1, "aten::mm": 2}, kernels={"sgemm": 2}, streams=2, graphs=1, allocations=3, threads=4
    )
    judged = Judged(
        name="a",
        finding=Finding.OK,
        as_rival=["aten::mm", "sgemm"],
        **msgspec.structs.asdict(ran) | {"precision": "high"},
    )
    assert told(judged)[2:] == [
        "  ran, by its own account: 2 aten::mm, 1 aten::empty; kernels: 2 sgemm; 3 allocations, 4 threads, 2 streams, "
        "1 graph launch; products in float32: high",
        "  as the reference does: aten::mm, sgemm",
        "  no kernel of its own: the reference runs all of them",
    ]


def test_nothing_is_faster_than_its_product_or_its_bytes() -> None:
    inputs = {"x": torch.ones(1024, 1024)}

    def accused(plain: Callable[[torch.Tensor], torch.Tensor], call_ns: float) -> str:
        with pytest.raises(RefusedError) as caught:
            refuse_beyond_hardware(plain, inputs, call_ns, 1e9)
        assert (caught.value.finding, caught.value.reason) == (Finding.SUSPICIOUS, Reason.FLOOR)
        return caught.value.text

    assert "its product" in accused(lambda x: x[:1] @ x, 10.0)
    assert "its bytes" in accused(lambda x: 2 * x, 10.0)
    refuse_beyond_hardware(lambda x: 2 * x, inputs, 10.0, 30.0)  # as fast as what is trusted
    refuse_beyond_hardware(lambda x: x[:1] * 2, inputs, 1e8, 1e9)
    assert product_ns(lambda x: x[:1] @ x, inputs) > 0
    assert product_ns(lambda x: (x @ x) @ x, inputs) == 0  # may be done in another order


@pytest.mark.parametrize(
    ("plain", "elements"),
    [
        (lambda x: 2 * x, 64 + 64),
        (lambda x: x[:2] * 3, 16 + 16),
        (lambda x: x.mul_(2), 64 + 64),
        (torch.zeros_like, 0),
        (torch.sum, 64 + 1),
        (lambda x: x * 0 + 1, 64),
        (lambda x: torch.from_numpy(2 * x.numpy()), 64),  # it has no gradient
        (lambda x: (x.amax(1), x.argmax(1) + 1), 64 + 8 + 2 * 8),  # all equal: each has a share
    ],
)
def test_bytes_that_any_code_moves(plain: Callable[[torch.Tensor], torch.Tensor], elements: int) -> None:
    assert least_bytes(plain, {"x": torch.ones(8, 8)}) == 4 * elements
