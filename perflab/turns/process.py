"""Starts the processes of an A/B comparison's sides: forked from one ancestor, which has imported PyTorch, or fresh.

Two fresh processes of the same code differ by several percent, because the interpreter and the libraries lie in
different pages of memory. Forked processes share these pages, so that only the code differs. Each round has its own
ancestor, so that pairs still sample the placement of pages. ``start_sides.stir`` randomises the placement of objects in
each process.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from perflab.base.data import Data
from perflab.base.errors import RivalError, SideEndedError
from perflab.processes.channel import Alive
from perflab.processes.child import Start, launch
from perflab.processes.peer import Ending, How, Peer
from perflab.turns import forking
from perflab.turns.messages import ANSWERS, PROTOCOL, Answer, Hello, Question

SideProcess = Peer[Question, Answer]
ANSWER_WITHIN_S = 900.0
"""A process that has not answered for this many seconds counts as hanging. A case may train, download or compile before
it is measured, and cannot report that, so the limit is a quarter of an hour."""
_LINES_SHOWN = 25


class OutOfTimeError(Exception):
    """The time of the whole comparison ended before a process had answered."""


def side_process(
    start: Start,
    answer_within_s: float = ANSWER_WITHIN_S,
    ancestor: Ancestor | None = None,
    seconds_left: Callable[[], float | None] = lambda: None,
) -> SideProcess:
    """Start the process of a side, without waiting until it is ready.

    Asking it and waiting for its answer raise ``SideEndedError`` if the process ended or hung, with its last output;
    ``OutOfTimeError`` if the comparison's time is over; and ``RivalError`` if it uses another protocol.

    Args:
        start: the command, environment and directory of the process.
        answer_within_s: a process that is silent for longer is ended; infinite: never.
        ancestor: forks the process; None: it is started as a fresh process.
        seconds_left: returns the time left for the whole comparison, which limits every wait; None: no limit.

    Raises:
        RivalError: the system cannot start such a process.
        NotForkedError: the ancestor cannot fork the process.
    """
    if os.name != "posix":
        raise RivalError("--perf-against needs a POSIX system", "run it on Linux or macOS, or under WSL")
    try:
        return Peer(
            start,
            ANSWERS,
            lambda ending: _side_ended(start, ending),
            silent_s=answer_within_s,
            seconds_left=seconds_left,
            launch=launch if ancestor is None else ancestor.fork,
        )
    except OSError as error:
        raise RivalError(f"{start.role}: cannot start {start.command[0]}: {error}", "check that it runs") from None


def first_answer(side: SideProcess) -> Hello:
    """Wait until the process has collected its cases, and return its first message.

    Raises:
        RivalError: the process ended before that, or uses another protocol.
    """
    answer = side.answer()
    if not isinstance(answer, Hello) or answer.protocol != PROTOCOL:
        raise RivalError(
            f"{side.role} runs another version of perflab than this session, with another protocol",
            "compare with a commit whose perflab has this version or a newer one",
        )
    return answer


def _side_ended(start: Start, ending: Ending) -> Exception:
    """Return the error for a side with which the conversation has ended."""
    if ending.how is How.OUT_OF_TIME:
        return OutOfTimeError()
    if ending.how is How.FOREIGN:
        return RivalError(f"{start.role} {ending.told}", "use the same version of perflab in head and base")
    before = " before it had measured" if ending.how is How.ENDED else ""
    output = "\n".join(f"    {line}" for line in ending.last_lines(_LINES_SHOWN))
    remedy = {
        How.ENDED: f"first make the cases run there: pytest -m perf in {start.directory}",
        How.HUNG: f"run the case alone: pytest -m perf in {start.directory}",
        How.CLOSED: "close no file descriptors in tests but your own: a case was running that did, or a library of its",
    }[ending.how]
    what = f"its process {ending.told}{before}"
    return SideEndedError(start.role, what, remedy, output=output, hung=ending.how is How.HUNG)


_PATIENCE_S = 120.0
"""The time in seconds that the ancestor may take to import PyTorch on a busy machine, or to fork."""
_COMMAND = ("-m", "pytest")
_READ_AT_IMPORT = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_", "NUMEXPR_", "DNNL_", "ONEDNN_"),
    *("TORCH", "PYTORCH_", "ATEN_", "C10_", "FX_", "KINETO_", "NPY_", "NUMPY_", "TRITON_", "MALLOC_", "GLIBC_", "LD_"),
    *("CUDA_", "CUBLAS", "CUDNN_", "NCCL_", "NVIDIA_", "NVPL_", "NVTX_", "HIP_", "HSA_", "ROCR_"),
)
"""Prefixes of environment variables that are read when PyTorch and its dependencies are loaded."""
_READ_LATER = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_MODULE_LOADING")
"""Variables with a prefix in _READ_AT_IMPORT that are read only after the import."""
_DAEMON = "KINETO_USE_DAEMON"
"""The environment variable that makes PyTorch's profiler start when PyTorch is loaded."""


class NotForkedError(Exception):
    """The ancestor cannot fork a process, which is then started as a separate fresh process."""


class Fork(Data, frozen=True, tag=True):
    """Request: fork a process. Two file descriptors follow: the process's end of its socket, and its output."""

    directory: str
    environment: dict[str, str]
    module: str
    path: list[str]
    """The entries that ``PYTHONPATH`` puts on the process's import path."""
    words: list[str]


class Wait(Data, frozen=True, tag=True):
    """Request: wait for the end of a forked process."""

    pid: int


class Done(Data, frozen=True, tag=True):
    """Answer: the ancestor has imported PyTorch (no number), has forked a process (its id), or a process ended."""

    number: int = 0
    """The id of the forked process; or the exit status of the one that ended, minus the number of a deadly signal."""


class Refused(Data, frozen=True, tag=True):
    """Answer: no process was forked, for this reason."""

    problem: str


_ANSWERS: msgspec.json.Decoder[Done | Refused | Alive] = msgspec.json.Decoder(Done | Refused | Alive)


@dataclass
class Ancestry:
    """Decides whether the processes of a comparison's rounds have a common ancestor; remembers a reason against it."""

    refused: str | None = None
    """Why the processes are started separately; None if they are forked from an ancestor."""

    @contextlib.contextmanager
    def ancestor_of(self, starts: Sequence[Start]) -> Iterator[Ancestor | None]:
        """Provide an ancestor for these processes, for the length of the block; None if an ancestor is not possible."""
        self.refused = self.refused or _unlike(starts)
        ancestor = None
        with contextlib.ExitStack() as stack:
            if self.refused is None:
                try:
                    ancestor = stack.enter_context(Ancestor(starts))
                except NotForkedError as error:
                    self.refused = str(error)
            yield ancestor


def check_variables(start: Start, variables: Mapping[str, str] | None) -> None:
    """Check that a process's tests did not change the variables that PyTorch may read when it is loaded.

    Args:
        start: holds the variables that the process was started with.
        variables: the process's variables after its tests were imported; None if it runs an older perflab.

    Raises:
        NotForkedError: a variable was changed, which has no effect if an ancestor has already loaded PyTorch; or the
            process runs an older perflab.
    """
    if variables is None:
        raise NotForkedError(f"{start.role} has an older perflab")
    given = start.environment
    names = sorted(name for name in {*given, *variables} if given.get(name) != variables.get(name))
    early = [name for name in names if name.startswith(_READ_AT_IMPORT) and name not in _READ_LATER]
    if early:
        raise NotForkedError(f"the tests set {', '.join(early)}, which PyTorch may read when it is imported")


def _unlike(starts: Sequence[Start]) -> str | None:
    """Return why these processes cannot have a common ancestor; None if they can."""
    if not _watches_processes():
        return "only Linux, from 5.3 on, forks processes that have imported PyTorch"
    if {tuple(start.command[1:3]) for start in starts} != {_COMMAND} or len({one.command[0] for one in starts}) > 1:
        return "they run different programs"
    if any(_DAEMON in one.environment for one in starts):
        return f"{_DAEMON} is set"
    variables = [{name: value for name, value in one.environment.items() if name != "PYTHONPATH"} for one in starts]
    return None if all(one == variables[0] for one in variables) else "they have different variables"


@functools.cache
def _watches_processes() -> bool:
    """Whether this system can wait for a process that is not a child: an old kernel or a system-call filter refuses."""
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _path_of(start: Start) -> list[str]:
    return [entry for entry in start.environment.get("PYTHONPATH", "").split(os.pathsep) if entry]


class Ancestor:
    """A live process that forks the sides of a round, a context manager: leaving its block ends it and its forks."""

    def __init__(self, starts: Sequence[Start]) -> None:
        """Start the ancestor, and wait until it has imported PyTorch.

        Raises:
            NotForkedError: the ancestor cannot start or cannot import PyTorch.
        """
        first, *others = starts
        shared = [entry for entry in _path_of(first) if all(entry in _path_of(other) for other in others)]
        command = [first.command[0], forking.__file__]
        variables = {**first.environment, "PYTHONPATH": os.pathsep.join(shared)}
        try:
            self._peer = Peer[Fork | Wait, Done | Refused](
                Start("their ancestor", command, variables, first.directory),
                _ANSWERS,
                lambda end: NotForkedError(": ".join([f"their ancestor {end.told}", *end.last_lines(1)])),
                silent_s=_PATIENCE_S,
            )
        except OSError as error:
            raise NotForkedError(str(error)) from None
        try:
            self._heard()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Ancestor:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def fork(self, start: Start, output: int, inherited: Sequence[int]) -> Forked:
        """Fork a process for this start: a ``Launch``.

        Args:
            start: the command, environment and directory of the process.
            output: the file descriptor that receives the process's output.
            inherited: the file descriptor of the process's end of its socket.

        Raises:
            NotForkedError: the process would differ from a fresh one, or cannot be forked.
        """
        (side,) = inherited
        asked = Fork(
            directory=str(start.directory),
            environment=dict(start.environment),
            module=start.command[2],
            path=_path_of(start),
            words=list(start.command[3:]),
        )
        self._peer.ask(asked, side, output)
        return Forked(self, self._heard())

    def status_of(self, number: int) -> int:
        """Wait for a process to end, and return its exit status; if a signal killed it, minus the signal's number."""
        try:
            self._peer.ask(Wait(pid=number))
            return self._heard()
        except NotForkedError:
            return -signal.SIGKILL  # the ancestor was killed, and all that it had forked with it

    def close(self) -> None:
        """End the ancestor. The kernel then ends all processes that it has forked."""
        self._peer.close()

    def _heard(self) -> int:
        answer = self._peer.answer()
        if isinstance(answer, Refused):
            raise NotForkedError(answer.problem)
        return answer.number


class Forked:
    """A process that an ancestor has forked: a ``Process``."""

    def __init__(self, ancestor: Ancestor, number: int) -> None:
        self.pid = number
        self._ancestor = ancestor
        self._status: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended, and return its exit status. Limits are kept by ``Child``, not here."""
        if self._status is None:
            self._status = self._ancestor.status_of(self.pid)
        return self._status

    def kill(self) -> None:
        """Kill the process at once."""
        os.kill(self.pid, signal.SIGKILL)
