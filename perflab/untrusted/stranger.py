"""A callable in a process of its own, held from outside: started, stopped, timed, and read while it is stopped."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import math
import mmap
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self, TypeVar

import torch
from torch import Tensor

from perflab.base.errors import PerflabError
from perflab.correctness.run import storage_bytes
from perflab.measure.clocks import clock
from perflab.processes.child import Launch, Start, launch
from perflab.processes.peer import Ending, How, Peer
from perflab.untrusted.messages import (
    ANSWERS,
    Answers,
    Entry,
    Finished,
    Go,
    Lay,
    Load,
    Look,
    Looked,
    Narrow,
    Questions,
    Raised,
    Ready,
    Role,
    TensorAt,
)

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

Answer = TypeVar("Answer", Ready, Finished, Looked)
_ALIGNED = 64
_PLACES = 61
"""The number of aligned places within some pages at which a tensor may begin, drawn at random for each call."""
_MOST_BYTES = 1 << 32
_DTYPES = frozenset(
    ("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool", "uint8", "int8", "int16", "int32")
) | {"int64", "float8_e4m3fn", "float8_e5m2"}
_MOST_DIMENSIONS = 64
_LOOKS_EVERY_S = 0.5
_STOPPED, _DEAD = (b"T", b"t"), (b"Z", b"X")
"""States of processes and threads, as in proc(5)."""
_STOPPED_WITHIN_S = 5.0
_VARIABLES = {"PATH", "HOME", "USER", "TMPDIR", "LANG", "LD_LIBRARY_PATH", "LD_PRELOAD", "CC", "CXX", "XDG_CACHE_HOME"}
_PREFIXES = (
    *("LC_", "PYTHON", "PYTORCH_", "TORCH", "TRITON_", "CUDA_", "NOCUDA_", "PERFLAB_AUTOTUNE"),
    *("ATEN_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"),
)
"""Environment variables that candidates, rivals and their ancestor have, by name and by the beginning of the name."""
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME", "CUDA_CACHE_PATH")
_ROUNDS = 100


class EndedError(Exception):
    """The process of a callable has ended, hangs, or answers in another protocol."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.told)
        self.ending = ending


class RaisedError(Exception):
    """The callable has raised."""

    def __init__(self, told: Raised) -> None:
        super().__init__(f"{told.kind}: {told.text}")
        self.told = told


class UnfitError(Exception):
    """The output of a callable is no plain tensor, or not where it should be: the text says which."""


class LooseError(UnfitError):
    """The process of a callable has not given up what it was told to, as seen from outside."""


@dataclass(frozen=True)
class Holding:
    """How callables are held: what all processes of a judgement share."""

    device: str
    folder: Path
    """A folder for what candidates write; removed with the judgement."""
    limit_s: float
    """The time in seconds that an answer may take."""
    start: Launch = launch
    read: tuple[Path, ...] = ()
    """Files and folders that a candidate may read and run."""
    listed: tuple[Path, ...] = ()
    """Folders of which it may read the names."""
    path: tuple[str, ...] = ()
    """Entries for the beginning of the import path."""


@dataclass(frozen=True)
class Span:
    """Calls in a row, timed from outside of their process."""

    ns: int
    """Time from letting the process go to stopping it again, in nanoseconds."""
    own_ns: int
    """The time that the process itself has told."""
    outputs: list[list[TensorAt | None]] = field(default_factory=list)


class _Range(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class Stranger:
    """A callable in its process; a context manager, whose end is the process's end."""

    def __init__(self, role: Role, entry: Entry, holding: Holding, given: bytes = b"", returns: int = 1) -> None:
        """Start the process and load the callable.

        Args:
            role: what the callable is for; a candidate is confined.
            entry: where the callable comes from.
            holding: how it is held.
            given: what is pickled of the entry.
            returns: the number of empty tensors that a control returns.

        Raises:
            RaisedError: the callable's module, or its making, raised.
            EndedError: the process ended or hung meanwhile.
        """
        self.role = role
        self._holding = holding
        own = self._own = holding.folder / f"{role}-{secrets.token_hex(4)}"
        own.mkdir()
        variables = variables_for(own if role is Role.CANDIDATE else None)
        command = [sys.executable, "-m", "perflab.untrusted.worker"]
        start = Start(str(role), command, variables, own if role is Role.CANDIDATE else Path.cwd())
        self._until_s = time.monotonic() + holding.limit_s
        self._peer = Peer[Questions, Answers](
            start, ANSWERS, EndedError, silent_s=holding.limit_s, seconds_left=self._seconds_left, launch=holding.start
        )
        self.pid = self._peer.pid
        self._over, self._is_late, self._is_alone = threading.Event(), False, False
        threading.Thread(target=self._watch, daemon=True, name=f"limit of {role}").start()
        self._shared = _Shared(1 << 20)
        self._held = self._shared
        """The shared memory that has the arguments of the latest calls."""
        self._told: list[list[TensorAt]] = []
        self._stopped_ns = 0
        self._end = 0
        try:
            self._check_reading()
            self.ready = self._load(entry, given, own, returns)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            if self.role is Role.CANDIDATE:
                with contextlib.suppress(UnfitError):  # a thread of it may wait in the kernel
                    self._stop()
                self._end_children()
        finally:
            self._over.set()
            self._peer.close()
            remove(self._own)

    def _watch(self) -> None:
        """End the process when an answer is overdue, however much it sends meanwhile."""
        while not self._over.wait(_LOOKS_EVERY_S):
            if time.monotonic() > self._until_s + _LOOKS_EVERY_S:
                self._is_late = True
                self._signal(signal.SIGKILL)  # the main thread waits for its end
                return

    def _load(self, entry: Entry, given: bytes, own: Path, returns: int) -> Ready:
        load = Load(
            role=self.role,
            entry=entry,
            device=self._holding.device,
            shared_bytes=self._shared.size,
            folder=str(own),
            read=[str(path) for path in (*self._holding.read, own)],
            listed=[str(path) for path in self._holding.listed],
            path=list(self._holding.path),
            has_entry_file=bool(given),
            returns=returns,
        )
        handles = [self._shared.handle]
        if given:
            handles.append(os.memfd_create("entry"))
            os.write(handles[1], given)
            os.lseek(handles[1], 0, os.SEEK_SET)
        try:
            self._ask(load, *handles)
        finally:
            for handle in handles[1:]:
                os.close(handle)
        return self._answer(Ready)

    def narrow(self) -> list[str]:
        """Take from the process what only compilation needs, and end all that it has started.

        A process of its own would see inputs while the candidate is stopped, and go on when a span has ended.

        Returns:
            What could not be taken.

        Raises:
            LooseError: the kernel says that the process is as free as before.
            UnfitError: there are always more processes.
        """
        before = _filters(self.pid)
        self._let_go()
        self._ask(Narrow())
        missing = list(self._answer(Ready).missing)
        self._stop()
        if before is None:
            missing.append(
                "the candidate can pretend that it has given up starting programs: this kernel tells no filters"
            )
        elif before > (_filters(os.getpid()) or 0) and (_filters(self.pid) or 0) <= before:
            raise LooseError("it did not give up starting programs and processes when it was told to")
        if not self._end_children():
            raise UnfitError("it starts processes without end")
        self._is_alone = True
        if not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists():
            missing.append("processes that the candidate starts are not seen: this kernel lists no children")
        return missing

    def _end_children(self) -> bool:
        """End all that the process has started, and return whether there is nothing left of it."""
        for _ in range(_ROUNDS):
            started = _descendants(self.pid)
            if not started:
                return True
            for one in started:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(one, signal.SIGKILL)
            time.sleep(0.01)
        return False

    def _seconds_left(self) -> float:
        """Return the time left for an answer in seconds, whatever signs of life the process gives."""
        return self._until_s - time.monotonic()

    def _ask(self, question: Questions, *handles: int) -> None:
        self._until_s = time.monotonic() + self._holding.limit_s
        self._peer.ask(question, *handles)

    def span(
        self,
        sets: Sequence[Sequence[Tensor]],
        *,
        gradients: bool = False,
        backward: Sequence[int] = (),
        poisons: bool = False,
        drops: bool = True,
        keeps_objects: bool = False,
    ) -> Span:
        """Make a call for each set of arguments, and time all of them.

        The values reach the process while it is stopped, just before it is let go.

        Args:
            sets: the arguments of each call; with ``backward``, the upstream gradients of each call before.
            gradients: whether floating arguments require gradients.
            backward: the numbers of the outputs that get upstream gradients; then the outputs are the gradients of
                the arguments.
            poisons: whether memory that the calls allocate holds NaN until it is written.
            drops: whether the outputs of earlier calls may be freed.
            keeps_objects: whether earlier arguments stay alive as objects.

        Raises:
            RaisedError, EndedError: the callable raised, or its process is gone.
        """
        self._let_go()
        told, end = _placed(sets, gradients, self._end if backward else 0)  # upstream gradients behind arguments
        handles = []
        if end > self._shared.size:
            self._shared = _Shared(2 * end)
            handles.append(self._shared.handle)
        lay = Lay(
            sets=told,
            backward=list(backward),
            shared_bytes=self._shared.size if handles else 0,
            drops=drops and not backward,
            poisons=poisons,
            keeps_objects=keeps_objects,
        )
        self._ask(lay, *handles)
        self._answer(Ready)
        if not backward:
            self._told, self._held, self._end = told, self._shared, end
        self._stop()
        self._refuse_children()
        processor_ns = self._processor_ns()
        for tensors, places in zip(sets, told, strict=True):
            for tensor, place in zip(tensors, places, strict=True):
                self._shared.write(place, tensor)
        self._refuse_work_since(processor_ns)
        began_ns = clock.read_ns()
        self._let_go()
        self._ask(Go())
        answer = self._answer(Finished)
        self._stop()
        ended_ns = clock.read_ns()  # threads may work on for as long as it takes to stop them
        self._stopped_ns = self._processor_ns()
        if len(answer.outputs) != len(sets):
            raise UnfitError(f"it answered {len(answer.outputs)} of {len(sets)} calls")
        self._refuse_children()
        return Span(ended_ns - began_ns, answer.own_ns, answer.outputs)

    def _check_reading(self) -> None:
        """Raise PerflabError unless this system lets a process read its own child's memory, while the child is ours."""
        try:
            with contextlib.suppress(UnfitError):
                _read(self.pid, 0, 1)
        except PermissionError:
            raise PerflabError(
                "this system does not let a process read the memory of its own child (process_vm_readv)",
                "set kernel.yama.ptrace_scope to 1 or 0, or give the container CAP_SYS_PTRACE",
            ) from None

    def _refuse_children(self) -> None:
        """Refuse a process that has started others since it was narrowed: they work while it is stopped.

        Raises:
            UnfitError: it has.
        """
        if self._is_alone and _children(self.pid):
            raise UnfitError("it has started a process, which would work on when it is stopped")

    def _refuse_work_since(self, processor_ns: int) -> None:
        """Refuse a process that has worked since this reading of its processor time, while it was stopped.

        Raises:
            UnfitError: it has; signals from timers and the like can let a process go.
        """
        if self.role is Role.CANDIDATE and self._processor_ns() != processor_ns:
            raise UnfitError("it went on while it was stopped")

    def look(self) -> Looked:
        """Return what a call runs, as its own process sees it: for a reader, and for no verdict."""
        self._let_go()
        self._ask(Look())
        return self._answer(Looked)

    def changed(self, names: Sequence[str], tensors: Sequence[Tensor], number: int = 0) -> list[str]:
        """Return the names of the arguments of a call that are not bit by bit what the process was given."""
        places = self._told[number]
        return [
            name
            for name, tensor, place in zip(names, tensors, places, strict=True)
            if not self._held.holds(place, tensor)
        ]

    def result(self, told: TensorAt | None) -> Tensor | None:
        """Read an output from the memory of the stopped process.

        Raises:
            UnfitError: it is no plain tensor, or does not lie where the process says.
        """
        if told is None:
            return None
        if not told.is_plain:
            raise UnfitError(f"it returned a {told.kind}, not a torch.Tensor")
        dtype, begins, ends = _extent(told)
        try:
            if begins == ends:
                return torch.empty(told.shape, dtype=dtype)
            data = _read(self.pid, begins, ends - begins)
            self._refuse_work_since(self._stopped_ns)
            return torch.frombuffer(data, dtype=dtype).as_strided(told.shape, told.stride)
        except PermissionError:
            raise UnfitError("it does not let its memory be read") from None
        except (RuntimeError, ValueError, OverflowError, MemoryError) as error:
            raise UnfitError(f"its output cannot be read: {str(error).partition(chr(10))[0]}") from None

    def lies_in_inputs(self, told: TensorAt) -> bool:
        """Whether any of the bytes that are an output lie in the memory of the inputs.

        Raises:
            UnfitError: the process does not let its memory be looked at.
        """
        _, begins, ends = _extent(told)
        return any(begins < high and ends > low for low, high in self._shared_ranges())

    def _answer(self, kind: type[Answer]) -> Answer:
        try:
            answer = self._peer.answer()
        except EndedError as error:
            if self._is_late:
                raise EndedError(replace(error.ending, how=How.HUNG, silent_s=self._holding.limit_s)) from None
            raise
        self._until_s = math.inf  # who is asked nothing may be silent, however long others take
        if isinstance(answer, Raised):
            raise RaisedError(answer)
        if not isinstance(answer, kind):
            raise EndedError(
                Ending(How.FOREIGN, problem=f"{type(answer).__name__}, where {kind.__name__} was asked for")
            )
        return answer

    def _let_go(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return  # it has ended, as the next question will tell

    def _stop(self) -> None:
        """Stop all threads of the process, and wait until they stand still.

        Raises:
            UnfitError: they do not.
        """
        self._signal(signal.SIGSTOP)
        until_s, processor_ns = time.monotonic() + _STOPPED_WITHIN_S, -1
        tasks = Path(f"/proc/{self.pid}/task")
        while time.monotonic() < until_s:
            try:
                states = [_state(one / "stat") for one in tasks.iterdir()]
            except OSError:
                return  # it has ended
            processor_ns, before_ns = self._processor_ns(), processor_ns
            # A thread that is marked as stopped works until the scheduler has taken its core away.
            if all(state in _STOPPED or state in _DEAD for state in states) and processor_ns == before_ns:
                return
        raise UnfitError("it does not stop")

    def _processor_ns(self) -> int:
        """Return the processor time of all threads of the process in nanoseconds, ended threads included."""
        try:
            return time.clock_gettime_ns(
                (~self.pid << 3) | 2
            )  # CPUCLOCK_SCHED of the process, as in clock_getcpuclockid
        except OSError:
            return 0

    def _shared_ranges(self) -> list[tuple[int, int]]:
        try:
            lines = Path(f"/proc/{self.pid}/maps").read_text(errors="replace").splitlines()
        except OSError:
            raise UnfitError("its memory cannot be looked at") from None
        ranges = [line.split()[0].split("-") for line in lines if "/memfd:inputs" in line]
        return [(int(low, 16), int(high, 16)) for low, high in ranges]


class _Shared:
    """Memory that the judge and one process share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.handle = os.memfd_create("inputs", os.MFD_ALLOW_SEALING)
        os.ftruncate(self.handle, size)
        fcntl.fcntl(self.handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._pages = mmap.mmap(self.handle, size)

    def __del__(self) -> None:
        os.close(self.handle)

    def write(self, place: TensorAt, tensor: Tensor) -> None:
        """Copy the whole memory behind a tensor to its place."""
        if place.size:
            self._bytes(place).copy_(storage_bytes(tensor))

    def holds(self, place: TensorAt, tensor: Tensor) -> bool:
        """Whether the place holds the memory behind the tensor bit by bit."""
        return not place.size or torch.equal(self._bytes(place), storage_bytes(tensor).cpu())

    def _bytes(self, place: TensorAt) -> Tensor:
        return torch.frombuffer(self._pages, dtype=torch.uint8, count=place.size, offset=place.at)


def _placed(sets: Sequence[Sequence[Tensor]], gradients: bool, at: int) -> tuple[list[list[TensorAt]], int]:
    """Return random places for tensors in the shared memory behind an offset, and where the last one ends."""
    told: list[list[TensorAt]] = []
    for tensors in sets:
        told.append([])
        for tensor in tensors:
            at += _ALIGNED * (1 + secrets.randbelow(_PLACES))
            told[-1].append(_form(tensor, at, gradients and tensor.is_floating_point()))
            at += -(-told[-1][-1].size // _ALIGNED) * _ALIGNED
    return told, at


def _form(tensor: Tensor, at: int, needs_gradient: bool) -> TensorAt:
    return TensorAt(
        at=at,
        size=tensor.untyped_storage().nbytes(),
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=list(tensor.shape),
        stride=list(tensor.stride()),
        offset=int(tensor.storage_offset()),
        needs_gradient=needs_gradient,
    )


def _extent(told: TensorAt) -> tuple[torch.dtype, int, int]:
    """Return the dtype of an output, and the addresses at which its bytes begin and end; equal ones if it has none.

    Raises:
        UnfitError: the form makes no sense, or is larger than what a judge reads.
    """
    sizes = [told.offset, told.size, told.at, *told.shape, *told.stride]
    if told.dtype not in _DTYPES or len(told.shape) != len(told.stride) or len(told.shape) > _MOST_DIMENSIONS:
        raise UnfitError("the form of its output makes no sense")
    if min(sizes) < 0 or max(sizes) > 1 << 62:
        raise UnfitError("the form of its output makes no sense")
    dtype: torch.dtype = getattr(torch, told.dtype)
    if math.prod(max(1, one) for one in told.shape) * dtype.itemsize > _MOST_BYTES:
        raise UnfitError("its output is larger than 4 GiB")
    if 0 in told.shape:
        return dtype, told.at, told.at
    last = told.offset + sum((n - 1) * step for n, step in zip(told.shape, told.stride, strict=True))
    begins, ends = told.offset * dtype.itemsize, (last + 1) * dtype.itemsize
    if ends > told.size or ends - begins > _MOST_BYTES:
        raise UnfitError("its output does not lie within the memory that it names, or is spread over 4 GiB")
    return dtype, told.at + begins, told.at + ends


def _descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have, without dead ones."""
    found, pending = [], [pid]
    while pending:
        below = _children(pending.pop())
        found += below
        pending += below
    return found


def _children(pid: int) -> list[int]:
    """Return the live processes that a process has started, and the orphans of those if it adopts them."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += [int(one) for one in (task / "children").read_bytes().split()]
    return [one for one in found if not _is_dead(one)]


def _filters(pid: int) -> int | None:
    """Return how many seccomp filters each thread of a process has at least; None where the kernel does not say."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                lines = (task / "status").read_text(errors="replace").splitlines()
                found += [int(line.split()[1]) for line in lines if line.startswith("Seccomp_filters:")]
    return min(found, default=None)


def _is_dead(pid: int) -> bool:
    """Whether all threads of a process have ended; its first one may have, and others not."""
    try:
        return all(_state(one / "stat") in _DEAD for one in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return True


def _state(stat: Path) -> bytes:
    """Return the letter of a process's or thread's state; that of a dead one if it is gone."""
    try:
        return stat.read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return b"X"


def _read(pid: int, at: int, size: int) -> bytearray:
    """Read another process's memory.

    Raises:
        PermissionError: the kernel refuses.
        UnfitError: there is no such memory.
    """
    data = bytearray(size)
    libc = ctypes.CDLL(None, use_errno=True)
    done = 0
    while done < size:
        ours = _Range(ctypes.addressof(ctypes.c_char.from_buffer(data, done)), size - done)
        theirs = _Range(at + done, size - done)
        got = libc.process_vm_readv(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
        if got > 0:
            done += got
        elif ctypes.get_errno() == 1:
            raise PermissionError
        else:
            raise UnfitError("its output does not lie within the memory that it names")
    return data


def variables_for(own: Path | None) -> dict[str, str]:
    """Return what programs and PyTorch need of the environment; of a candidate, with its folder for all it writes."""
    given = {name: value for name, value in os.environ.items() if name in _VARIABLES or name.startswith(_PREFIXES)}
    if own is None:
        return given
    return {**given, "HOME": str(own), "TMPDIR": str(own), **{name: str(own / name.lower()) for name in _CACHES}}


def remove(folder: Path) -> None:
    """Remove a candidate's folder, which may be nested deeper than paths and Python's stack allow, and closed to us."""
    for command in (["rm", "-rf", "--"], ["chmod", "-R", "u+rwX", "--"], ["rm", "-rf", "--"]):
        if folder.exists():
            subprocess.run([*command, str(folder)], check=False, stderr=subprocess.DEVNULL)
