"""A callable in a process of its own, held from outside: started, stopped, timed, and read while it is stopped."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

import torch
from torch import Tensor

from perflab.base.errors import PerflabError
from perflab.correctness.run import storage_bytes
from perflab.measure.clocks import clock
from perflab.processes.child import Launch, Start, launch
from perflab.processes.peer import Ending, How, Peer
from perflab.untrusted import kernel
from perflab.untrusted.errors import EndedError, LooseError, RaisedError, UnfitError
from perflab.untrusted.memory import NAME, Shared, extent_of, placed
from perflab.untrusted.messages import (
    ANSWERS,
    PICKLED,
    PLAINLY,
    Answers,
    Do,
    Entry,
    Finished,
    Lay,
    Load,
    Looked,
    Manner,
    Questions,
    Raised,
    Ready,
    Rights,
    Role,
    Step,
    TensorAt,
)

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

Answer = TypeVar("Answer", Ready, Finished, Looked)
_STOPPED_WITHIN_S = 5.0
_STANDS_AFTER_S = 0.05
"""Seconds without work after which a stopped process stands still, where the kernel does not show queued threads."""
_VARIABLES = {"PATH", "HOME", "USER", "TMPDIR", "LANG", "LD_LIBRARY_PATH", "LD_PRELOAD", "CC", "CXX", "XDG_CACHE_HOME"}
_PREFIXES = (
    *("LC_", "PYTHON", "PYTORCH_", "TORCH", "TRITON_", "CUDA_", "NOCUDA_", "PERFLAB_AUTOTUNE"),
    *("ATEN_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"),
)
"""Environment variables that candidates, rivals and their ancestor have, by name and by the beginning of the name."""
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME", "CUDA_CACHE_PATH")
_ROUNDS = 100


@dataclass(frozen=True)
class Holding:
    """How callables are held: what all processes of a judgement share."""

    device: str
    folder: Path
    """A folder for what candidates write; removed with the judgement."""
    limit_s: float
    """The time in seconds that an answer may take."""
    rights: Rights
    start: Launch = launch


@dataclass(frozen=True)
class Source:
    """A callable for another process: where it comes from, and what is pickled of it."""

    name: str
    entry: Entry = PICKLED
    given: bytes = b""


def nothing(device: str, returns: int = 1) -> Source:
    """Return the source of a control: a function that does nothing, and returns so many empty tensors."""
    text = f"def nothing(*_):\n    return [torch.empty(0, device={device!r}) for _ in range({returns})]"
    return Source("nothing", Entry(name="control:nothing", source=f"import torch\n{text}"))


@dataclass(frozen=True)
class Span:
    """Calls in a row, timed from outside of their process."""

    ns: int
    """Time from letting the process go to stopping it again, in nanoseconds."""
    own_ns: int
    """The time that the process itself has told."""
    outputs: list[list[TensorAt | None]] = field(default_factory=list)


class Stranger:
    """A callable in its process; a context manager, whose end is the process's end."""

    def __init__(self, role: Role, source: Source, holding: Holding) -> None:
        """Start the process and load the callable.

        Args:
            role: what the callable is for; a candidate is confined.
            source: where the callable comes from.
            holding: how it is held.

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
        self._peer = Peer[Questions, Answers](
            start, ANSWERS, EndedError, silent_s=holding.limit_s, launch=holding.start, is_trusted=False
        )
        self.pid = self._peer.pid
        self._is_alone = False
        self._shared = Shared(1 << 20)
        self._held = self._shared
        """The shared memory that has the arguments of the latest calls."""
        self._told: list[list[TensorAt]] = []
        self._upstream: list[TensorAt] = []
        self._stopped_ns = 0
        self._end = 0
        try:
            self._check_reading()
            self.ready = self._load(source)
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
            self._peer.close()
            remove(self._own)

    def _load(self, source: Source) -> Ready:
        load = Load(
            role=self.role,
            entry=source.entry,
            device=self._holding.device,
            shared_bytes=self._shared.size,
            folder=str(self._own),
            rights=self._holding.rights,
        )
        file = os.memfd_create("entry")
        with open(file, "wb") as written:
            written.write(source.given)
            written.flush()
            written.seek(0)
            return self._ask(Ready, load, self._shared.handle, file)

    def narrow(self) -> list[str]:
        """Take from the process what only compilation needs, and end all that it has started.

        A process of its own would see inputs while the candidate is stopped, and go on when a span has ended.

        Returns:
            What could not be taken.

        Raises:
            LooseError: the kernel says that the process is as free as before.
            UnfitError: there are always more processes.
        """
        before = kernel.filters(self.pid)
        missing = list(self._ask(Ready, Do(step=Step.NARROW)).missing)
        self._stop()
        if before is None:
            missing.append(
                "the candidate can pretend that it has given up starting programs: this kernel tells no filters"
            )
        elif before > (kernel.filters(os.getpid()) or 0) and (kernel.filters(self.pid) or 0) <= before:
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
            started = kernel.descendants(self.pid)
            if not started:
                return True
            for one in started:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(one, signal.SIGKILL)
            time.sleep(0.01)
        return False

    def span(self, sets: Sequence[Sequence[Tensor]], how: Manner = PLAINLY) -> Span:
        """Make a call for each set of arguments, and time all of them.

        The values reach the process while it is stopped, just before it is let go.

        Raises:
            RaisedError, EndedError: the callable raised, or its process is gone.
        """
        told, end = placed(sets, self._end if how.backward else 0)  # upstream gradients behind arguments
        handles = []
        if end > self._shared.size:
            self._shared = Shared(2 * end)
            handles.append(self._shared.handle)
        self._ask(Ready, Lay(sets=told, how=how, shared_bytes=self._shared.size if handles else 0), *handles)
        if how.backward:
            (self._upstream,) = told
        else:
            self._told, self._held, self._end = told, self._shared, end
        self._stop()
        self._refuse_children()
        processor_ns = kernel.processor_ns(self.pid)
        for tensors, places in zip(sets, told, strict=True):
            for tensor, place in zip(tensors, places, strict=True):
                self._shared.bytes_at(place).copy_(storage_bytes(tensor))
        self._refuse_work_since(processor_ns)
        began_ns = clock.read_ns()
        answer = self._ask(Finished, Do(step=Step.GO))
        self._stop()
        ended_ns = clock.read_ns()  # threads may work on for as long as it takes to stop them
        self._stopped_ns = kernel.processor_ns(self.pid)
        if len(answer.outputs) != len(sets):
            raise UnfitError(f"it answered {len(answer.outputs)} of {len(sets)} calls")
        self._refuse_children()
        return Span(ended_ns - began_ns, answer.own_ns, answer.outputs)

    def _check_reading(self) -> None:
        """Raise PerflabError unless this system lets a process read its own child's memory, while the child is ours."""
        try:
            with contextlib.suppress(UnfitError):
                kernel.read_memory(self.pid, 0, 1)
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
        if self._is_alone and kernel.children(self.pid):
            raise UnfitError("it has started a process, which would work on when it is stopped")

    def _refuse_work_since(self, processor_ns: int) -> None:
        """Refuse a process that has worked since this reading of its processor time, while it was stopped.

        Raises:
            UnfitError: it has; signals from timers and the like can let a process go.
        """
        if self.role is Role.CANDIDATE and kernel.processor_ns(self.pid) != processor_ns:
            raise UnfitError("it went on while it was stopped")

    def look(self) -> Looked:
        """Return what a call runs, as its own process sees it: it may accuse the callable, never acquit it."""
        return self._ask(Looked, Do(step=Step.LOOK))

    def after(self, number: int = 0) -> list[Tensor]:
        """Return the memory behind each argument of a call as it is now, as bytes on the host.

        Memory of a device is copied to the host for it, where it stays until the next span.
        """
        if self._holding.device != "cpu":
            self._ask(Ready, Do(step=Step.BACK))
            self._stop()
            self._stopped_ns = kernel.processor_ns(self.pid)
        return [self._held.bytes_at(place) for place in self._told[number]]

    def upstream_after(self) -> list[Tensor]:
        """Return the memory behind each upstream gradient of the last backward as it is now, as bytes.

        On a device the process works on copies, and the memory is as it was given.
        """
        return [self._shared.bytes_at(place) for place in self._upstream]

    def changed(self, inputs: Mapping[str, Tensor], number: int = 0) -> list[str]:
        """Return the names of the arguments of a call that are not bit by bit what the process was given."""
        together = zip(inputs.items(), self.after(number), strict=True)
        return [name for (name, given), after in together if not torch.equal(storage_bytes(given).cpu(), after)]

    def result(self, told: TensorAt | None) -> Tensor | None:
        """Read an output from the memory of the stopped process.

        Raises:
            UnfitError: it is no plain tensor, or does not lie where the process says.
        """
        if told is None:
            return None
        if told.kind:
            raise UnfitError(f"it returned a {told.kind}, not a torch.Tensor")
        dtype, begins, ends = extent_of(told)
        try:
            if begins == ends:
                return torch.empty(told.shape, dtype=dtype)
            data = kernel.read_memory(self.pid, begins, ends - begins)
            self._refuse_work_since(self._stopped_ns)
            return torch.frombuffer(data, dtype=dtype).as_strided(told.shape, told.stride)
        except PermissionError:
            raise UnfitError("it does not let its memory be read") from None
        except (RuntimeError, ValueError, OverflowError, MemoryError) as error:
            raise UnfitError(f"its output cannot be read: {str(error).partition(chr(10))[0]}") from None

    def lies_in_inputs(self, told: TensorAt) -> bool:
        """Whether any of the bytes that are an output lie in the memory of the inputs; on a device, as it says itself.

        Raises:
            UnfitError: the process does not let its memory be looked at.
        """
        _, begins, ends = extent_of(told)
        return told.in_arguments or any(
            begins < high and ends > low for low, high in kernel.mapped_ranges(self.pid, NAME)
        )

    def _ask(self, kind: type[Answer], question: Questions, *handles: int) -> Answer:
        """Let the process go, ask it, and return its answer.

        Raises:
            RaisedError: the callable raised.
            EndedError: the process is gone, or gives an answer of another kind.
        """
        self._signal(signal.SIGCONT)
        self._peer.ask(question, *handles)
        answer = self._peer.answer()
        if isinstance(answer, Raised):
            raise RaisedError(answer)
        if not isinstance(answer, kind):
            raise EndedError(
                Ending(How.FOREIGN, problem=f"{type(answer).__name__}, where {kind.__name__} was asked for")
            )
        return answer

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
        began_s = same_s = time.monotonic()
        processor_ns = -1
        while (now_s := time.monotonic()) - began_s < _STOPPED_WITHIN_S:
            is_still = all(one in kernel.STILL for one in kernel.states(self.pid))  # none, if it has ended
            processor_ns, before_ns = kernel.processor_ns(self.pid), processor_ns
            if not is_still or processor_ns != before_ns:
                same_s = now_s
            elif now_s - same_s > _STANDS_AFTER_S or not kernel.is_queued(self.pid):
                return
        raise UnfitError("it does not stop")


def variables_for(own: Path | None) -> dict[str, str]:
    """Return what programs and PyTorch need of the environment; of a candidate, with its folder for all it writes."""
    given = {name: value for name, value in os.environ.items() if name in _VARIABLES or name.startswith(_PREFIXES)}
    given["PYTHONSAFEPATH"] = "1"  # a file in the current directory, which may be a stranger's, is none of our modules
    if own is None:
        return given
    return {**given, "HOME": str(own), "TMPDIR": str(own), **{name: str(own / name.lower()) for name in _CACHES}}


def remove(folder: Path) -> None:
    """Remove a candidate's folder, which may be nested deeper than paths and Python's stack allow, and closed to us."""
    for command in (["rm", "-rf", "--"], ["chmod", "-R", "u+rwX", "--"], ["rm", "-rf", "--"]):
        if folder.exists():
            subprocess.run([*command, str(folder)], check=False, stderr=subprocess.DEVNULL)
