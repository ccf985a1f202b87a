"""Attacks are caught with the reason that fits, and no honest candidate is accused."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from perflab.base.errors import PerflabError, UsageError
from perflab.measurement.callables import BASE, CANDIDATE
from perflab.untrusted import kernel, race, stranger
from perflab.untrusted.command import held
from perflab.untrusted.errors import RefusedError, UnfitError
from perflab.untrusted.judge import Case, Terms, judge, refuse_beyond_hardware, refuse_work_outside
from perflab.untrusted.messages import ANSWERS, Entry, Raised, Role, TensorAt
from perflab.untrusted.race import Race, share_of_a_replaced_clock
from perflab.untrusted.records import MOST_TEXT, Finding, Judged, Reason
from perflab.untrusted.stranger import Holding, Source, Stranger
from perflab.untrusted.worker import _raised
from tests.untrusted import task
from tests.untrusted.attacks import ATTACKS
from tests.untrusted.controls import CONTROLS

HERE = Path(__file__).parent
RESULT, CLOCK, FORM = (Finding.WRONG, Reason.RESULT), (Finding.SUSPICIOUS, Reason.CLOCK), (Finding.WRONG, Reason.FORM)
RAISED, CRASHED = (Finding.WRONG, Reason.RAISED), (Finding.WRONG, Reason.CRASHED)
CHANGED, RETURNED = (Finding.WRONG, Reason.INPUTS_CHANGED), (Finding.WRONG, Reason.INPUTS_RETURNED)
AHEAD = (Finding.SUSPICIOUS, Reason.AHEAD)


def judged(kind: str, name: str, holding: Holding, budget_s: float = 0.3) -> Judged:
    case = Case(
        definition=task.definition,
        plain=task.definition,
        draws=[task.inputs],
        rivals=[Source("the reference", Entry(name="task:definition", source=(HERE / "task.py").read_text()))],
        terms=Terms(budget_s=budget_s),
    )
    if name in ("hangs", "says_that_it_lives"):
        holding = replace(holding, limit_s=2.0)
    text = (HERE / f"{kind}.py").read_text()
    return judge(Source(name, Entry(name=f"{kind}:{name}", source=text)), case, holding)


COMES_TO = {
    "works_in_a_process": (RAISED, RESULT),  # shared memory is refused; without it the child's work is nowhere
    "works_in_a_daemon": (RESULT, FORM),
    "is_lazy": (FORM,),
    "overrides_its_output": (CLOCK,),
    "computes_ahead": (AHEAD,),
    "replaces_the_clock": (CLOCK,),
    "replaces_events": (CLOCK,),
    "replaces_the_harness": (CLOCK,),
    "answers_itself": (CRASHED, RESULT),
    "calls_the_reference": (RAISED,),
    "reads_the_reference": (RAISED,),
    "reads_the_judges_memory": (RAISED,),
    "returns_its_input": (RETURNED,),
    "ruins_what_gc_finds": (RESULT, CHANGED),
    "overwrites_its_inputs": (CHANGED,),
    "works_in_its_input": (CHANGED,),
    "ends_with_success": (CRASHED,),
    "exits": (RAISED,),
    "crashes": (CRASHED,),
    "hangs": ((Finding.WRONG, Reason.HUNG),),
    "says_that_it_lives": ((Finding.WRONG, Reason.HUNG),),
    "kills_the_judge": (RAISED,),
    "asks_the_network": (RAISED,),
    "overwrites_open_files": (CRASHED, RESULT),
    "falls_back": (RAISED,),
}
"""What an attack may come to, where it is not a wrong result."""


REPLAYS_NOTHING = ("replays_by_pointer", "rests_in_rows")
"""Attacks that compute each result where no place of memory comes again, as may be by chance, or where a busy
machine is too slow for calls in a row."""


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_caught(name: str, holding: Holding) -> None:
    found = judged("attacks", name, holding)
    expected = COMES_TO.get(name, (RESULT,))
    may_be_true = expected[0] in (CLOCK, AHEAD) or name in REPLAYS_NOTHING
    if may_be_true and found.reason in (Reason.NONE, Reason.TIME):
        # On a busy machine a clock that was replaced does not show. Nothing is taken from it: what is told is no less
        # than the rival's time, which does as much work.
        assert found.finding is not Finding.OK or all(one.value > 0.5 for one in found.ratios), found
    else:
        assert (found.finding, found.reason) in expected, found


@pytest.mark.parametrize("name", CONTROLS)
def test_an_honest_candidate_is_not_accused(name: str, holding: Holding) -> None:
    found = judged("controls", name, holding)
    for _ in range(2):  # as the documentation says: time on a busy machine can look suspicious, ask again
        found = judged("controls", name, holding) if found.finding is Finding.SUSPICIOUS else found
    assert found.reason in (Reason.NONE, Reason.TIME), found
    assert found.checked >= 5
    assert {one.rival for one in found.ratios} == {"the reference"}
    assert not found.notes


OTHERS = """
import torch
def turned(x): return torch.fft.fft(x).conj()
def not_turned(x): return torch.fft.fft(x)
def imaginary(x): return torch.fft.fft(x).conj().imag
def logarithm(x): return x.log()
def logarithm_of_none(x): return torch.full_like(x, 7.0).masked_fill(x < 0, float("nan"))
def logarithm_in_a_row(x): return x.log().flatten()
def complex_logarithm(x): return torch.complex(x.log(), x)
def short_logarithm(x): return x.log().to(torch.float8_e4m3fn)
def root(x): return torch.linalg.cholesky(x)
def product(x): return x.float() @ x.float().T
def steep(x): return x * x.abs() * torch.tensor([1e12] + [1.0] * 39)
def without_the_flat_part(x): return steep(x) * (torch.arange(40) < 1)
def counts(x): return x
def rounds(x): return x.double().long()
def and_zeros(x): return x * 2, torch.zeros_like(x)
def and_nothing(x): return x * 2, None
def shares(x): return torch.softmax(x if x.is_floating_point() else x.float(), -1)
def shares_by_hand(x):
    e = (x if x.is_floating_point() else x.float()).exp()
    return e / e.sum(-1, keepdim=True)
def short_shares(x): return shares(x.float()).to(x.dtype if x.is_floating_point() else torch.float32) * (1 + 3e-6)
"""


def normal(_seed: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(40, 40)}


def with_a_root(_seed: int) -> dict[str, torch.Tensor]:
    x = torch.randn(40, 40)
    return {"x": x @ x.T + 40 * torch.eye(40)}


def eight_bits(_seed: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(40, 40).to(torch.float8_e4m3fn)}


def doubles(_seed: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(40, 40, dtype=torch.float64)}


def small_numbers(_seed: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randint(0, 9, (40, 40))}


def large_numbers(_seed: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randint(1 << 61, 1 << 62, (40, 40))}


@pytest.mark.parametrize(
    ("of", "name", "draw", "reason"),
    [
        ("turned", "turned", normal, Reason.NONE),
        ("turned", "not_turned", normal, Reason.RESULT),
        ("imaginary", "imaginary", normal, Reason.NONE),
        ("logarithm", "logarithm", normal, Reason.NONE),
        ("logarithm", "logarithm_of_none", normal, Reason.RESULT),
        ("logarithm", "logarithm_in_a_row", normal, Reason.RESULT),
        ("logarithm", "complex_logarithm", normal, Reason.RESULT),
        ("logarithm", "short_logarithm", normal, Reason.RESULT),
        ("root", "root", with_a_root, Reason.NONE),
        ("product", "product", eight_bits, Reason.NONE),
        ("steep", "steep", normal, Reason.NONE),
        ("steep", "without_the_flat_part", normal, Reason.RESULT),
        ("counts", "rounds", large_numbers, Reason.RESULT),
        ("and_zeros", "and_nothing", normal, Reason.FORM),
        ("shares", "shares_by_hand", doubles, Reason.NONE),
        ("shares", "short_shares", doubles, Reason.RESULT),
        ("shares", "shares_by_hand", small_numbers, Reason.NONE),
        ("shares", "short_shares", small_numbers, Reason.RESULT),
    ],
)
def test_other_dtypes_and_definitions_without_an_answer_somewhere(
    of: str, name: str, draw: Callable[[int], dict[str, torch.Tensor]], reason: Reason, holding: Holding
) -> None:
    names: dict[str, Callable[..., torch.Tensor]] = {}
    exec(OTHERS, names)
    case = Case(definition=names[of], plain=names[of], draws=[draw])
    found = judge(Source(name, Entry(name=f"others:{name}", source=OTHERS)), case, holding)
    assert found.reason is reason, found


FORGETS = """
import torch
calls = [0]
def softmax(x): return torch.softmax(x, -1)
def forgets_other_values(x):
    calls[0] += 1
    is_as_drawn = 0.8 < float(x.std()) < 1.2 and float(x[0, 0]) > 0
    return softmax(x) if calls[0] < 8 or is_as_drawn else torch.zeros_like(x)
"""


def test_a_candidate_that_is_right_for_other_values_at_first_is_wrong(
    holding: Holding, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Callable[..., torch.Tensor]] = {}
    exec(FORGETS, names)
    monkeypatch.setattr(race, "_PROBE", 1.0)
    case = Case(
        definition=names["softmax"],
        plain=names["softmax"],
        draws=[lambda _seed: {"x": torch.randn(40, 40).index_fill_(0, torch.tensor(0), 0.5)}],
        rivals=[Source("the reference", Entry(name="others:softmax", source=FORGETS))],
        terms=Terms(budget_s=3.0),
    )
    source = Source("forgets", Entry(name="others:forgets_other_values", source=FORGETS))
    found = judge(source, case, holding)
    assert (found.finding, found.reason) == RESULT, found
    assert found.calls > 8


class Buffer:
    """A definition that writes random numbers to the same memory each time."""

    calls = itertools.count(1)
    """A number for each call of another definition, which returns so many results."""

    def __init__(self) -> None:
        self.out = torch.empty(40, 40)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.out.normal_()


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        (lambda x: torch.dropout(x, 0.5, True), "other results for the same inputs"),
        (lambda x: torch.randint(1 << 61, (1 << 61) + 9, x.shape), "other results for the same inputs"),
        (lambda x: list(x)[: next(Buffer.calls)], "other results for the same inputs"),
        (Buffer(), "other results for the same inputs"),
        (lambda x: {"y": x}, "returned a dict, not tensors"),
    ],
)
def test_a_definition_that_cannot_tell_what_is_right_is_refused(
    definition: Callable[..., torch.Tensor], text: str, holding: Holding
) -> None:
    with pytest.raises(UsageError, match=text):
        judge(Source("any", Entry()), Case(definition=definition, plain=definition, draws=[normal]), holding)


LAZY_CHILD = """
import ctypes, mmap, os, platform, sys, time
import torch
pages = mmap.mmap(-1, 4 * 128 * 320)
out = torch.frombuffer(pages, dtype=torch.float32).view(128, 320)
worker = sys.modules["__main__"]
worker.narrow = list

def harmless_filter():
    allow = ctypes.create_string_buffer(bytes([6, 0, 0, 0, 0, 0, 255, 127]))
    program = (ctypes.c_uint64 * 2)(1, ctypes.addressof(allow))
    libc, seccomp = ctypes.CDLL(None), {"x86_64": 317, "aarch64": 277}[platform.machine()]
    libc.syscall(seccomp, 1, 1, program), libc.syscall(seccomp, 1, 0, program), libc.prctl(22, 2, program, 0, 0)
    return []

def narrows_by_another_filter(x, w):
    worker.narrow = harmless_filter
    return x @ w

laid, child = worker._laid, []
def laid_with_a_child(served, question):
    child.append(os.fork())
    if child[-1] == 0:
        os.setsid()
        time.sleep(0.3)
        os._exit(0)
    return laid(served, question)

def child_before(x, w):
    worker._laid = laid_with_a_child
    if child:
        os.waitpid(child.pop(), 0)
    y = x @ w
    return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)

def child_later(x, w):
    if os.fork() == 0:
        os.setsid()
        time.sleep(0.0005)
        y = x @ w
        out.copy_(y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6))
        os._exit(0)
    return out

def no_answer(x, w):
    sys.modules["__main__"].Finished = lambda **told: finished(**{**told, "outputs": []})
    return x @ w
finished = sys.modules["__main__"].Finished

def alive_without_pause(x, w):
    channel = sys.modules["perflab.processes.channel"]
    while True:
        channel.say(channel.Alive(for_s=60.0))

def half_a_message(x, w):
    os.write(sys.modules["perflab.processes.channel"].to_parent().fileno(), b"\\0\\0\\1\\0half")
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("child_before", Reason.FORM),
        ("child_later", Reason.FORM),
        ("no_answer", Reason.FORM),
        ("alive_without_pause", Reason.HUNG),
        ("half_a_message", Reason.HUNG),
    ],
)
def test_what_the_process_does_to_the_conversation_is_wrong(
    name: str, reason: Reason, holding: Holding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "filters", lambda _pid: None)  # as of a kernel that does not tell them
    found = held_to_the_task(name, holding)
    assert (found.finding, found.reason) == (Finding.WRONG, reason), found


def held_to_the_task(name: str, holding: Holding) -> Judged:
    case = Case(definition=task.definition, plain=task.definition, draws=[task.inputs])
    entry = Entry(name=f"attacks:{name}", source=LAZY_CHILD)
    return judge(Source(name, entry), case, replace(holding, limit_s=5.0))


@pytest.mark.parametrize("name", ["child_later", "narrows_by_another_filter"])
def test_a_process_that_only_says_that_it_has_given_up_its_rights_is_suspicious(name: str, holding: Holding) -> None:
    if kernel.filters(1) is None:
        pytest.skip("this kernel does not tell how many filters a process has")
    found = held_to_the_task(name, holding)
    assert (found.finding, found.reason) == (Finding.SUSPICIOUS, Reason.LOOSE), found


def test_memory_that_may_not_be_read_is_the_candidate_s_fault_once_it_is_loaded(
    holding: Holding, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> bytearray:
        raise PermissionError

    told = TensorAt(at=4096, size=8, dtype="float32", shape=[2], stride=[1], offset=0)
    with Stranger(Role.CONTROL, stranger.nothing("cpu"), holding) as one:
        monkeypatch.setattr(kernel, "read_memory", refused)
        with pytest.raises(UnfitError, match="does not let its memory be read"):
            one.result(told)
    with pytest.raises(PerflabError, match="of its own child"):
        Stranger(Role.CONTROL, stranger.nothing("cpu"), holding)


SEES = """
import torch
def variables(x):
    with open("/proc/self/environ", "rb") as file:
        return torch.tensor([float(b"SECRET_TOKEN" in file.read()), 1.0])
"""


def test_a_candidate_has_no_variable_of_the_session_beyond_those_that_programs_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert stranger.variables_for(None).keys() >= {"PATH", "OMP_NUM_THREADS"}
    assert "SECRET_TOKEN" not in stranger.variables_for(None)
    with held("cpu", 60.0, [], []) as fresh:  # from an ancestor of its own
        for role in (Role.RIVAL, Role.CANDIDATE):  # what a rival has is in the memory from which the next one is forked
            with Stranger(role, Source("sees", Entry(name="sees:variables", source=SEES)), fresh) as one:
                found = one.result(one.span([[torch.zeros(2)]]).outputs[0][0])
                assert found is not None
                assert found.tolist() == [0.0, 1.0]


def race_of(alone_ns: list[float], further_ns: list[float]) -> Race:
    race = object.__new__(Race)
    race._calls = 11
    race._alone = {BASE: [2e6, 2e6, 2e6], CANDIDATE: alone_ns}
    race._among = {BASE: [1.9e6], CANDIDATE: [1e6]}
    race._call_ns = lambda side, _number: further_ns.pop(0) if side == CANDIDATE else 1e6  # type: ignore[method-assign]
    return race


def test_a_candidate_is_faster_among_calls_only_if_no_further_call_alone_is_as_fast() -> None:
    slow = [11e6, 12e6, 13e6]
    race_of(list(slow), [14e6, 15e6, 1.1e6])._refuse_calls_ahead()
    with pytest.raises(RefusedError, match="a call alone takes 11"):
        race_of(list(slow), [14e6] * 12)._refuse_calls_ahead()
    race_of([], [11e6, 12e6, 1.1e6])._refuse_calls_ahead()  # too few were alone by chance
    busy = race_of(list(slow), [])
    busy._alone[BASE] = [1.9e6, 9e6, 9e6]  # the machine delays calls that are alone, as the rival's show
    busy._refuse_calls_ahead()


def test_no_answer_is_overdue_while_none_is_asked_for(holding: Holding) -> None:
    with Stranger(Role.CONTROL, stranger.nothing("cpu"), holding) as one:
        one.span([[torch.zeros(1)]])
        assert one._peer._due_s == math.inf


def test_a_text_that_is_too_long_is_no_answer() -> None:
    told = Raised(kind="E" * MOST_TEXT, module="m", text="", traceback="")
    assert ANSWERS.decode(msgspec.json.encode(told)) == told
    with pytest.raises(msgspec.ValidationError):
        ANSWERS.decode(msgspec.json.encode(Raised(kind="E", module="m", text="", traceback="E" * (MOST_TEXT + 1))))


def test_an_error_of_a_compiler_is_known_by_its_class_and_not_by_its_text() -> None:
    of_a_program, of_triton = (
        RuntimeError("failed"),
        type("Error", (Exception,), {"__module__": "triton.compiler.errors"}),
    )
    of_a_program.__cause__ = subprocess.CalledProcessError(1, "cc")
    assert [_raised(one).of_compiler for one in (of_a_program, of_triton(), ValueError("compilation failed"))] == [
        True,
        True,
        False,
    ]


def test_closed_folders_are_removed_by_a_user_who_is_not_root() -> None:
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer, "own")
        (folder / "a" / "b").mkdir(parents=True)
        (folder / "a" / "b" / "file").touch()
        (child := os.fork()) or removes_as_somebody_else(folder)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def removes_as_somebody_else(folder: Path) -> None:
    """Close the folders, remove them without root's rights, and leave this process with 0 if they are gone."""
    with contextlib.suppress(BaseException):
        is_root, here = os.getuid() == 0, [folder.parent, folder, folder / "a", folder / "a" / "b"]
        for one in here if is_root else ():
            os.chown(one, 65534, 65534)
        if is_root:
            os.setgid(65534), os.setuid(65534)
        for one in reversed(here[2:]):
            one.chmod(0)
        stranger.remove(folder)
        os._exit(int(folder.exists()))
    os._exit(2)


@pytest.mark.parametrize(
    "told",
    [
        {"shape": [-1, 0], "stride": [1, 1]},
        {"shape": [2, 2], "stride": [-1, 1]},
        {"shape": [2], "stride": [1 << 40], "size": 1 << 48},
        {"shape": [1 << 40], "stride": [0]},
        {"dtype": "quint4x2"},
        {"dtype": "nn"},
        {"at": 16},
    ],
)
def test_outputs_that_make_no_sense_are_refused(told: dict[str, object], holding: Holding) -> None:
    at: dict[str, object] = {"at": 4096, "size": 64, "dtype": "float32", "shape": [2], "stride": [1], "offset": 0}
    with Stranger(Role.CONTROL, stranger.nothing("cpu"), holding) as one:
        with pytest.raises((UnfitError, msgspec.ValidationError)):
            one.result(msgspec.convert(at | told, TensorAt))
        assert one.result(msgspec.convert(at | {"shape": [0]}, TensorAt)) is not None


def test_a_clock_counts_as_replaced_where_it_tells_next_to_nothing_and_the_rival_s_does_not() -> None:
    honest = [0.7, 0.8, 0.75, 0.9]
    short, long = [50e3, 90e3, 60e3, 200e3], [2e6, 2.1e6, 2.5e6, 2.2e6]  # nanoseconds that a clock does not tell
    never = [0.0, 0.0, 0.01, 0.0]
    assert share_of_a_replaced_clock(never, long, short) is not None
    assert share_of_a_replaced_clock(honest, long, short) is None
    assert share_of_a_replaced_clock([0.0, 0.0, 0.5, 0.6], long, short) is None, "only some spans, as on a busy machine"
    assert share_of_a_replaced_clock(never, short, short) is None, "a short call, most of whose span is the machine's"
    assert share_of_a_replaced_clock(never, long, long) is None, "the rival's falls short too"


def product(x: torch.Tensor) -> torch.Tensor:
    return x @ x


def two_products(x: torch.Tensor) -> torch.Tensor:
    return x @ x @ x


@pytest.mark.parametrize(
    ("definition", "call_us", "rival_us", "is_suspicious"),
    [
        (product, 30, 200, True),  # 128 us at the best rate
        (product, 33, 200, False),
        (product, 30, 110, False),  # the trusted function is as fast: so the hardware can be
        (product, 27, 110, True),
        (two_products, 30, 200, False),  # may be done in another order, with fewer operations
    ],
)
def test_a_candidate_may_not_be_faster_than_its_product_at_the_best_rate(
    definition: Callable[[torch.Tensor], torch.Tensor],
    call_us: float,
    rival_us: float,
    is_suspicious: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("perflab.untrusted.judge.matmul_flops_per_second", lambda *_: 1e9)
    asked = (
        pytest.raises(RefusedError, match=r"its product .* at the best rate")
        if is_suspicious
        else contextlib.nullcontext()
    )
    with asked:
        refuse_beyond_hardware(definition, lambda: normal(0), 1e3 * call_us, 1e3 * rival_us)


@pytest.mark.parametrize(("device_ns", "is_suspicious"), [(None, False), (10_400_000, False), (11_000_000, True)])
def test_a_device_may_not_work_for_longer_than_the_span_of_the_call(device_ns: int | None, is_suspicious: bool) -> None:
    told = pytest.raises(RefusedError, match="its device works for 11")
    with told if is_suspicious else contextlib.nullcontext():
        refuse_work_outside(device_ns, 10_000_000)


def test_there_are_as_many_kinds_as_promised() -> None:
    assert len(ATTACKS) >= 32
    assert len(CONTROLS) >= 16
    assert all(source.startswith("https://") for _, source in ATTACKS.values())


def test_a_stopped_process_stands_still_once_no_thread_of_it_is_queued_for_a_core() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        for is_queued in (True, False):
            tries = 0
            while kernel.is_queued(process.pid) is not is_queued:
                assert tries < 1000
                time.sleep(0.01)
                tries += 1
            process.send_signal(signal.SIGSTOP)
        worked_ns = kernel.processor_ns(process.pid)
        time.sleep(0.1)
        assert kernel.processor_ns(process.pid) == worked_ns
        process.kill()
