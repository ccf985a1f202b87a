"""``perflab verify`` as its user runs it, and what its parts refuse."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch
from torch.autograd import DeviceType

from perflab.base.errors import PerflabError
from perflab.cli import main
from perflab.untrusted import kernelbench
from perflab.untrusted.command import line_of, told
from perflab.untrusted.confine import readable
from perflab.untrusted.errors import RefusedError
from perflab.untrusted.judge import Terms, judge, least_bytes, refuse_beyond_hardware
from perflab.untrusted.kernelbench import sliced
from perflab.untrusted.messages import Entry, Looked, Role
from perflab.untrusted.records import Finding, Judged, Reason
from perflab.untrusted.stranger import Holding, Source, Stranger
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


@dataclass
class Ran:
    """What a command has come to."""

    status: int
    stdout: str
    stderr: str = ""

    @property
    def findings(self) -> dict[str, tuple[str, str]]:
        """The finding and the reason of each candidate of a batch, by its name."""
        found = map(json.loads, self.stdout.splitlines())
        return {one["name"]: (one["finding"], one.get("reason", "")) for one in found}


Verify = Callable[..., Ran]


def written(folder: Path) -> None:
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "candidates.py").write_text(CANDIDATES)


@pytest.fixture
def verify(
    tmp_path: Path, one_ancestor: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Verify]:
    """The command in this process, and in a folder of its own."""
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments: str) -> Ran:
        status = main(["verify", "--device=cpu", "--limit=60", *arguments])
        return Ran(status, *capsys.readouterr())

    yield run
    for name in ("reference", "large"):
        sys.modules.pop(name, None)


def against(definition: str, candidate: str, *arguments: str) -> list[str]:
    module, _, _ = definition.partition(":")
    return [f"candidates:{candidate}", f"--against={definition}", f"--inputs={module}:inputs", *arguments]


def test_a_right_candidate_is_judged_and_files_named_like_modules_run_in_no_process_but_its_own(tmp_path: Path) -> None:
    written(tmp_path)
    for name in ("msgspec", "resource", "getpass", "statistics", "sympy"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise ImportError")
    command = [str(Path(sys.executable).parent / "perflab"), "verify", "--device=cpu", "--json=out.jsonl"]
    command += against("reference:softmax", "right", "--budget=0.2")
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0 or "slower" in found.stdout or "can't tell" in found.stdout, found
    assert "calls checked" in found.stdout
    assert not (tmp_path / "ran").exists()
    told = json.loads((tmp_path / "out.jsonl").read_text())
    assert told["name"] == "candidates:right"
    assert told["finding"] in ("ok", "can't tell", "slower")
    assert told["checked"] >= 5
    assert told["operators"]["aten::exp"] == 1
    assert told["allocations"] == 5, found
    assert told["threads"] >= 1
    assert [one["rival"] for one in told["ratios"]] == ["reference:softmax"]


def test_a_slow_candidate_is_slower(verify: Verify) -> None:
    # Some hundred times slower: decided after a few pairs, and none of them may take all the time.
    found = verify(*against("reference:softmax", "slow", "--budget=10"))
    assert found.status == 1, found
    assert "candidates:slow: slower" in found.stdout
    assert "as the reference does: aten::_softmax" in found.stdout


def test_a_candidate_for_small_values_is_wrong(verify: Verify) -> None:
    Path("large.py").write_text(REFERENCE.replace("torch.randn(", "30 * torch.randn("))
    found = verify(*against("large:softmax", "overflows", "--budget=1"))
    assert "wrong: wrong result" in found.stdout, found
    assert found.status == 1


def test_writing_to_inputs_has_to_be_declared(verify: Verify) -> None:
    found = verify(*against("reference:softmax", "in_place"))
    assert "wrong: changed its inputs" in found.stdout, found
    assert "it changed x" in found.stdout
    found = verify(*against("reference:softmax", "in_place", "--in-place", "--budget=0.2"))
    assert "wrong" not in found.stdout, found


def test_several_outputs_are_compared(verify: Verify) -> None:
    found = verify(*against("reference:both", "both", "--budget=0.2"))
    assert "wrong" not in found.stdout, found
    found = verify(*against("reference:both", "right"))
    assert "it returned 1 outputs, wanted 2" in found.stdout


def test_unusable_arguments_name_the_remedy(verify: Verify, tmp_path: Path) -> None:
    assert "name a candidate" in verify().stderr
    assert "name what is right" in verify("candidates:right").stderr
    found = verify("reference:both", "--against=reference:softmax", "--inputs=reference:inputs")
    assert found.status == 2
    assert "put the candidate in a file of its own" in found.stderr
    assert "importable from here" in verify(*against("reference:none", "right")).stderr
    found = verify(*against("reference:softmax", "absent"))
    assert "wrong: does not compile" in found.stdout
    assert "has no attribute 'absent'" in found.stdout
    assert "no file defines ModelNew" in verify(f"--batch={tmp_path}").stderr


def test_a_folder_is_judged_line_by_line_and_one_that_breaks_stops_none(verify: Verify, tmp_path: Path) -> None:
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
    found = verify(f"--batch={folder}", "--budget=0.4")
    told = found.findings
    assert told.pop("a_right")[0] in ("ok", "can't tell", "slower"), found
    assert told == {
        "b_wrong": ("wrong", "wrong result"),
        "c_exits": ("wrong", "crash"),
        "d_reference": ("wrong", "raised"),
        "e_memory": ("wrong", "out of memory"),
        "f_syntax": ("wrong", "does not compile"),
        "g_no_problem": ("can't tell", "not judged"),
    }
    assert found.status == 1


def test_files_that_are_made_to_break_a_batch_have_their_lines(verify: Verify, tmp_path: Path) -> None:
    folder, problems = tmp_path / "candidates", tmp_path / "problems"
    for one in (folder, problems):
        one.mkdir()
    (folder / "a_link.py").symlink_to("nowhere")
    os.mkfifo(folder / "b_pipe.py")
    (folder / "c_folder.py").mkdir()
    new = "import torch.nn as nn" + NEW.format(forward="return self.layer(x)")
    for name, more in {
        "d_large": "#" * (1 << 20),
        "e_signs": f"x = {'-' * 200_000}1",
        "f_sums": f"x = 1{'+1' * 60_000}",
        "g_null": chr(0),
        "h_wrong": "",
        "i_right": "",
    }.items():
        right = new.replace("return self.layer(x)", "return self.layer(x).clamp(min=0)")
        (folder / f"{name}.py").write_text((right if name == "i_right" else new) + more)
        (problems / f"{name}.py").write_text(PROBLEM)
    found = verify(f"--batch={folder}", f"--against={problems}", "--budget=0.2")
    told = found.findings
    assert told.pop("h_wrong") == ("wrong", "wrong result"), found
    assert told.pop("i_right")[0] != "wrong", found
    assert len(told) == 7
    assert set(told.values()) == {("wrong", "does not compile")}, told


def test_an_error_in_judging_one_candidate_is_its_line(
    tmp_path: Path, holding: Holding, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (tmp_path / f"{name}.py").write_text(PROBLEM + NEW.format(forward="return x"))
    errors = [PerflabError("no memory of it", "look"), ZeroDivisionError("by zero")]
    monkeypatch.setattr(kernelbench, "judge", lambda *_: (_ for _ in ()).throw(errors.pop(0)))
    found = list(kernelbench.judge_folder(tmp_path, None, holding, Terms(budget_s=1), print))
    assert [(one.finding, one.reason, one.text.splitlines()[0]) for one in found] == [
        (Finding.UNKNOWN, Reason.UNJUDGED, "no memory of it"),
        (Finding.UNKNOWN, Reason.UNJUDGED, "ZeroDivisionError: by zero"),
    ]
    assert not any(one.is_accepted for one in found)


def test_a_long_chain_of_names_is_sliced_in_linear_time() -> None:
    text = "x0 = 0\n" + "".join(f"x{number} = x{number - 1}\n" for number in range(1, 20_000))
    began_s = time.process_time()
    assert len(sliced(text, ["x19999"]).splitlines()) == 20_000
    many = ", ".join(f"x{number}" for number in range(20_000))
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


def test_inputs_keep_their_layouts_on_their_way(holding: Holding) -> None:
    layouts = (
        "import torch\ndef told(*xs):\n"
        "    return [torch.tensor([*x.stride(), x.storage_offset()]) for x in xs] + [xs[0] * 1]"
    )
    x = torch.arange(24.0).reshape(4, 6)
    inputs = [x.T, x[1:, 2:], x[:, :1].expand(4, 3), x.bfloat16(), torch.empty(0, 3), torch.tensor([True, False])]
    with Stranger(Role.CANDIDATE, Source("layouts", Entry(name="layouts:told", source=layouts)), holding) as one:
        told = [one.result(at) for at in one.span([inputs]).outputs[0]]
    for tensor, found in zip(inputs[:4], told, strict=False):
        assert found is not None
        assert found.tolist() == [*tensor.stride(), tensor.storage_offset()]
    assert told[-1] is not None
    assert torch.equal(told[-1], x.T)


def test_a_problem_with_a_python_number_among_its_inputs_is_judged(holding: Holding) -> None:
    problem = (
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, factor, x):\n        return factor * x\n"
        "def get_inputs():\n    return [3.5, torch.randn(8, 8)]\ndef get_init_inputs():\n    return []\n"
    )
    right = "class ModelNew(torch.nn.Module):\n    def forward(self, factor: float, x):\n        return x * factor\n"
    found = {}
    for name, text in {"right": right, "wrong": right.replace("* factor", "* 3")}.items():
        case, source = kernelbench._case(name, problem + text, problem)
        found[name] = judge(source, replace(case, rivals=()), holding)
    assert found["right"].finding is Finding.OK
    assert (found["wrong"].finding, found["wrong"].reason) == (Finding.WRONG, Reason.RESULT)


def test_a_model_whose_function_closes_over_its_layers_is_judged(holding: Holding) -> None:
    problem = PROBLEM.replace("self.layer = nn.Linear(size, size)", LAMBDA).replace("self.layer(x)", "self.layered(x)")
    found = {}
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


def test_nothing_is_faster_than_its_bytes() -> None:
    def draw() -> dict[str, torch.Tensor]:
        return {"x": torch.randn(1024, 1024)}

    with pytest.raises(RefusedError, match="its bytes") as caught:
        refuse_beyond_hardware(lambda x: 2 * x, draw, 10.0, 1e9)
    assert (caught.value.finding, caught.value.reason) == (Finding.SUSPICIOUS, Reason.FLOOR)
    refuse_beyond_hardware(lambda x: 2 * x, draw, 10.0, 30.0)  # as fast as what is trusted
    refuse_beyond_hardware(lambda x: x[:1] * 2, draw, 1e8, 1e9)
    refuse_beyond_hardware(lambda x: x.softmax(-1).sum(-1).round(), draw, 10.0, 1e9)  # ones, whatever x is


@pytest.mark.parametrize(
    ("plain", "size"),
    [
        (lambda x: 2 * x, 4 * (64 + 64)),
        (lambda x: x[:2] * 3, 4 * (16 + 16)),
        (lambda x: x.mul_(2), 4 * (64 + 64)),
        (torch.zeros_like, 0),
        (torch.sum, 4 * (64 + 1)),
        (lambda x: x * 0 + 1, 0),
        (lambda x: torch.from_numpy(2 * x.numpy()), 4 * 64),  # it has no gradient
        (lambda x: (2 * x, torch.ones(8, 8).tril()), 4 * (64 + 64)),  # a table may be kept
        (lambda x: x.mean().expand(8, 8), 4 * (64 + 1)),
        (lambda x: x.to(torch.float8_e4m3fn), 64),  # nor has this
        (lambda x: x.double().softmax(-1).sum(-1).round(), 0),  # gradients that are rounding
        (lambda x: [][0] if x.requires_grad else 2 * x, 4 * 64),
    ],
)
def test_bytes_that_any_code_moves(plain: Callable[[torch.Tensor], torch.Tensor], size: int) -> None:
    inputs = {"x": torch.arange(1.0, 65).reshape(8, 8) / 16}
    assert least_bytes(plain, inputs, {"x": inputs["x"] * 1.5}) == size


def test_inputs_count_by_their_memory() -> None:
    few = {"x": torch.arange(1.0, 9).expand(8, 8)}
    assert least_bytes(lambda x: 2 * x, few, {"x": few["x"] * 2}) == 4 * (64 + 8)
