"""``--perf-adversarial``: what ``perf`` measures and ``verify`` checks, once more in processes of its own.

The session itself has imported the candidate, with the tests that name it: what happens at an import happens here too.
``perflab verify`` judges without that. Candidates are pickled by cloudpickle, those of test files by value, so that
their processes have no test file, and no reference that stands in one.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from perflab.base.errors import ClockError, PerflabError, ResultsError, UsageError, WrongResultError
from perflab.correctness.definition import Definition, copied, rewritten
from perflab.correctness.run import Function, Task, held_elsewhere, run_candidate, same_bits, storage_bytes
from perflab.internals.of_torch.originals import is_own, modes_on, named
from perflab.measure.calls.flat import Flat
from perflab.measure.calls.outputs import alike
from perflab.measure.calls.workload import Workload
from perflab.measure.clocks import clock
from perflab.measure.machine.devices import synchronize
from perflab.measure.stopping import Progress
from perflab.processes.peer import How
from perflab.running.case.reference import IN_PLACE, UNDEFINED, Reference, Trusted, refuse_other
from perflab.units import format_count, format_ns
from perflab.untrusted.command import held
from perflab.untrusted.errors import EndedError, RaisedError, UnfitError
from perflab.untrusted.judge import Case, Terms, judge
from perflab.untrusted.messages import MOST_TEXT, Manner, Role, TensorAt
from perflab.untrusted.records import Finding, Reason
from perflab.untrusted.stranger import Holding, Source, Span, Stranger, nothing

if TYPE_CHECKING:
    import pytest

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_LIMIT_S = 300.0
_CALLS, _IN_A_ROW = 6, 4
_BETWEEN = 12
"""Calls of a candidate between the two that ``verify`` checks."""
_MOST_SPANS = 40
"""Spans before a time counts as bent: on a busy machine most of them are slow."""
_TELLING = 64
"""Distinct values of a random result that never are equal, bit by bit, by chance."""
_APART = "a process of its own"
_SLOWER = 3.0
_RESOLVED_NS = 200_000
"""A time is bent if a call in a process of its own takes _SLOWER times as long as measured, and this much more: inputs
are fresh there, and caches hold none of them."""


@dataclass
class _Running:
    """The processes of one session's candidates."""

    root: Path
    limit_s: float
    """The time in seconds after which a call hangs."""
    files: set[Path] = field(default_factory=set)
    """Test files: never read by a candidate."""
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    holdings: dict[tuple[Path, ...], Holding] = field(default_factory=dict)
    """How candidates are held, by the files that are secret besides test files."""

    def holding(self, trusted: Sequence[Function] = ()) -> Holding:
        """Return how a candidate is held that must not have these functions."""
        secret = tuple(_files_of(trusted))
        if secret not in self.holdings:
            hidden = [*secret, *self.files]
            hidden += [file.parent / "__pycache__" for file in hidden]
            own = [
                entry
                for one in sys.path
                if (entry := Path(one or ".").absolute()).is_dir() and not _is_installed(entry)
            ]
            folders = list(dict.fromkeys([self.root, Path.cwd(), *own]))
            self.holdings[secret] = self.stack.enter_context(held("cpu", self.limit_s, folders, hidden))
        return self.holdings[secret]


def begin(config: pytest.Config, items: Sequence[pytest.Item], timeout_s: float | None) -> None:
    """Hold candidates elsewhere from now on, until the session ends. A call may take ``timeout_s`` (None: _LIMIT_S).

    Raises:
        UsageError: this system has no Linux, cloudpickle is not installed, or importing the tests has left a mode of
            PyTorch's on, which would answer for the comparisons.
    """
    if modes := [one for one in modes_on() if not is_own(one)]:
        raise UsageError(
            f"--perf-adversarial: importing the tests has left modes on that answer for PyTorch: {named(modes)}",
            "enter modes inside of tests",
        )
    if sys.platform != "linux":
        raise UsageError("--perf-adversarial needs Linux", "run it in a container or in WSL 2")
    pickler()
    running = _Running(config.rootpath, timeout_s or _LIMIT_S, {Path(item.path) for item in items})
    for item in items:
        module = getattr(item, "module", None)
        if isinstance(module, ModuleType):
            pickler().register_pickle_by_value(module)
    running.stack.enter_context(held_elsewhere(functools.partial(_held, running)))
    config.add_cleanup(running.stack.close)
    _RUNNING[:] = [running]
    config.add_cleanup(_RUNNING.clear)


_RUNNING: list[_Running] = []


def pickler() -> Any:
    """Return cloudpickle.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import cloudpickle
    except ImportError as error:
        raise UsageError("--perf-adversarial needs cloudpickle", "pip install 'perflab[adversarial]'") from error
    return cloudpickle


def _pickled(call: Callable[..., Any], name: str) -> Source:
    try:
        return Source("the candidate", given=pickler().dumps(call))
    except Exception as error:  # whatever a user's class raises
        raise UsageError(
            f"{name} cannot be sent to a process of its own: {error}",
            "keep what it needs in arguments and module-level functions, not in handles, locks or open files",
        ) from error


def _name_of(call: object) -> str:
    return str(getattr(call, "__qualname__", type(call).__qualname__))


def _is_installed(path: Path) -> bool:
    """Whether a path belongs to this Python, its packages or perflab, and so to nobody's tests."""
    installed = (Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[1])
    return any(folder in (path, *path.parents) for folder in installed)


# --- verify -----------------------------------------------------------------------------------------------------


def _files_of(functions: Sequence[Function]) -> list[Path]:
    """Return the files of functions and of what they close over, without installed packages and perflab itself."""
    found: list[Path] = []
    pending: list[Any] = list(functions)
    seen = set[int]()
    while pending:
        one = pending.pop()
        one = inspect.unwrap(one) if callable(one) else one
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, functools.partial):
            pending += [one.func, *one.args, *one.keywords.values()]
        elif inspect.ismethod(one):
            pending += [one.__func__]
        elif inspect.isfunction(one):
            file = Path(one.__code__.co_filename)
            if file.exists() and not _is_installed(file):
                found.append(file)
            for cell in one.__closure__ or ():
                with contextlib.suppress(ValueError):  # an empty cell
                    pending += [cell.cell_contents] if callable(cell.cell_contents) else []
        elif callable(one) and not isinstance(one, type):  # a module, say
            file = Path(getattr(sys.modules.get(type(one).__module__), "__file__", None) or "")
            if file.is_file() and not _is_installed(file):
                found.append(file)
    return list(dict.fromkeys(found))


@contextlib.contextmanager
def _held(
    running: _Running, candidate: Function, inputs: Mapping[str, Tensor], task: Task, trusted: Sequence[Function]
) -> Iterator[Function]:
    """Hold a candidate of ``verify`` in a process of its own; see ``correctness.run.held``."""
    packed = _pickled(functools.partial(candidate, **task.settings), _name_of(candidate))
    holding = replace(running.holding(trusted), device=str(next(iter(inputs.values())).device))
    with _told(), Stranger(Role.CANDIDATE, packed, holding) as process:
        fresh = dict(zip(inputs, _fresh(list(inputs.values())), strict=True))
        run_candidate(_Held(process), fresh, task, 0, "a first call")  # in which it may compile
        process.narrow()
        yield _Held(process)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Turn what the process of a candidate does into an error of the candidate's."""
    try:
        yield
    except EndedError as error:
        kind = "hang" if error.ending.how is How.HUNG else "crash"
        text = "\n".join([f"the candidate's process {error.ending.told}", *error.ending.last_lines(20)])
        raise AssertionError(f"{text[:MOST_TEXT]}\n(a {kind} is wrong)") from None
    except UnfitError as error:
        raise AssertionError(str(error)) from None
    except RaisedError as error:
        raised = _as_here(error)
        raised.add_note(f"in a process of its own:\n{error.told.traceback}")
        raise raised from None


def _as_here(error: RaisedError) -> Exception:
    """Return the error that the candidate has raised, of its class if this process knows it by that name."""
    kind = getattr(sys.modules.get(error.told.module), error.told.kind, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, PerflabError):
        with contextlib.suppress(TypeError):
            return kind(error.told.text)
    return RuntimeError(f"{error.told.kind}: {error.told.text}")


class _Held:
    """A callable in a process of its own, as a function that autograd knows: for one call, or two that are compared."""

    def __init__(self, process: Stranger) -> None:
        self.process = process
        self._returned: list[tuple[TensorAt | None, Tensor]] = []
        """The places of the first call's results, and the results as they were read last."""
        self._arguments: list[Tensor] = []

    def __call__(self, *inputs: Tensor, **_settings: object) -> tuple[Tensor, ...]:
        return _InItsProcess.apply(self, *inputs)  # type: ignore[no-any-return, no-untyped-call]

    def forward(self, inputs: Sequence[Tensor], gradients: bool) -> list[tuple[TensorAt | None, Tensor | None]]:
        self._arguments = list(inputs)
        again = bool(self._returned)
        for _ in range(_BETWEEN if again else 0):  # what counts its calls does not know which one is checked
            self.process.span([_fresh(inputs)], Manner(drops=False))
        found = self._results(self.process.span([inputs], Manner(gradients=gradients, poisons=True, drops=not again)))
        self._returned = self._returned or [(told, one.detach()) for told, one in found if one is not None]
        return found

    def backward(self, upstream: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients of floating inputs; an output whose gradient is None has no part in them."""
        given = [one for one in upstream if one is not None]
        numbers = [number for number, one in enumerate(upstream) if one is not None]
        found = self._results(self.process.span([given], Manner(backward=numbers, poisons=True)))
        for tensor, after in zip(given, self.process.upstream_after(), strict=True):
            storage_bytes(tensor).copy_(after)
        return [one for _, one in found]

    def _results(self, span: Span) -> list[tuple[TensorAt | None, Tensor | None]]:
        """Read results, and bring what is here up to date: the arguments, and the first call's results."""
        for tensor, after in zip(self._arguments, self.process.after(), strict=True):
            storage_bytes(tensor).copy_(after)
        for told, tensor in self._returned:
            now = self.process.result(told)
            assert now is not None
            tensor.copy_(now)
        found = [(told, self.process.result(told)) for told in span.outputs[0]]
        device = self._arguments[0].device  # outputs of a device are copied to the host's memory
        return [(told, None if one is None else one.to(device, copy=True)) for told, one in found]


class _InItsProcess(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, held: _Held, *inputs: Tensor) -> tuple[Tensor | None, ...]:
        with _told():
            found = held.forward([one.detach() for one in inputs], any(ctx.needs_input_grad))
        ctx.held, ctx.floats = held, [one.is_floating_point() for one in inputs]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(one for told, one in found if told and one is not None and not told.needs_gradient)
        )
        return tuple(one for _, one in found)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        with _told():
            found = ctx.held.backward(upstream)
            if len(found) != sum(ctx.floats):
                raise UnfitError(f"it answered {len(found)} gradients of {sum(ctx.floats)} inputs")
        gradients = iter(found)
        return None, *(next(gradients) if is_float else None for is_float in ctx.floats)


# --- perf -------------------------------------------------------------------------------------------------------


class Packed:
    """A workload for other processes, as it was before its first call here: what calls have kept is not sent.

    Attributes:
        inputs: the tensors among its arguments, which get fresh values in each call, by name.
        call: the pickled function of these tensors.
        trusted: the reference as functions of them; None without one.
    """

    def __init__(self, workload: Workload, reference: Reference | None) -> None:
        """Pickle the workload.

        Args:
            workload: the workload, before its first call.
            reference: tells which arguments may be changed, and are results then.

        Raises:
            UsageError: it cannot be sent to another process, or stands in the reference's file.
        """
        call, args, kwargs = workload.roots if type(workload) is Workload else (workload.run, (), {})
        flat = Flat(call, args, kwargs)
        self.trusted: Trusted | None = None
        if reference is not None:
            self.trusted = reference.trusted(workload)
            flat.writes = self.trusted.plain.writes
            (running,) = _RUNNING
            # Functions of test files are sent without the file.
            both = set(_files_of([call])) & set(_files_of([reference.definition])) - running.files
            if both:
                raise UsageError(
                    f"{_name_of(call)} and its reference are in one file, {both.pop()}",
                    "put the reference in a file of its own or of tests: the candidate's process must not have "
                    "the answers",
                )
        self.inputs = {name: copied(one) if name in flat.writes else one for name, one in flat.inputs.items()}
        flat.inputs = {}
        self.call = _pickled(flat, _name_of(call))


_OTHER_TIME = "look for results that are kept, work that goes on after the call, and clocks that are replaced"


def hold_to_account(
    packed: Packed,
    workload: Workload,
    device: torch.device,
    call_ns: float,
    progress: Progress,
    *,
    allow_nan: bool = False,
) -> str:
    """Run a measured workload in processes of its own, and return what that has shown.

    Args:
        packed: the workload as it was before it was measured.
        workload: the workload as it is; it is timed here again beside its process, since the machine may be busier now.
        device: the device of the work.
        call_ns: the time of a call as it was measured, in nanoseconds.
        progress: called as each process begins, whose first call may compile.
        allow_nan: whether results may be NaN, which memory is that nobody has written.

    Raises:
        UsageError: the workload breaks in a process of its own.
        WrongResultError: its results are not those of the reference.
        ResultsError: its processes return other results for the same inputs.
        ClockError: a call takes far longer there than was measured here.
    """
    (running,) = _RUNNING
    secret = [] if packed.trusted is None else [packed.trusted.definition]
    holding = replace(running.holding(secret), device=str(device))
    progress(_APART)
    known = "" if packed.trusted is None else _judged_by(packed.trusted, packed, holding)
    inputs, trusted = list(packed.inputs.values()), packed.trusted
    definition = trusted and Definition(trusted.exact, trusted.plain, packed.inputs, trusted.multiple)
    with contextlib.ExitStack() as stack:
        try:
            first, second = (stack.enter_context(Stranger(Role.CANDIDATE, packed.call, holding)) for _ in "ab")
            control = stack.enter_context(Stranger(Role.CONTROL, nothing(holding.device), holding))
            for process in (first, second):
                progress(_APART)
                process.span([_fresh(inputs)])
                process.narrow()
            progress(_APART)
            steady = _compare(first, second, inputs, allow_nan=allow_nan)

            def check(span: Span, drawn: int, given: Sequence[Tensor]) -> None:
                found = _read(first, span, drawn)
                if definition is not None:
                    refuse_other(definition, dict(zip(packed.inputs, given, strict=True)), found)
                elif steady:
                    _same(found, second, given)

            own_ns, here_ns = _fastest_ns(first, check, control, inputs, workload, device, call_ns)
        except RaisedError as error:
            raise UsageError(
                f"the case raised in a process of its own: {error}\n{error.told.traceback}",
                "let it run on fresh values of its arguments, and without the session's files",
            ) from None
        except EndedError as error:
            raise UsageError(
                f"the case's own process {error.ending.told}",
                "\n".join(error.ending.last_lines(20))[:MOST_TEXT] or "no output",
            ) from None
        except UnfitError as error:
            raise ResultsError(str(error), "return tensors") from None
    if own_ns > _enough_ns(here_ns):
        raise ClockError(
            f"a call was measured as {format_ns(call_ns)}, and takes {format_ns(own_ns)} in a process of its own, on "
            "fresh inputs and by a clock outside of it",
            _OTHER_TIME,
        )
    agrees = "returns no tensor to compare" if steady is None else f"agrees in {format_count(_CALLS, 'call')}"
    return known + (agrees if steady is not False else "results differ from call to call")


def _judged_by(trusted: Trusted, packed: Packed, holding: Holding) -> str:
    """Compare calls in a process of the candidate's own with a reference, and return how many were right, as text.

    Raises:
        WrongResultError: one is not.
        ClockError: its device worked on after a call.
        UsageError: the candidate does not run there, or the reference has no answer.
    """
    judged = judge(
        packed.call,
        Case(
            definition=trusted.exact,
            plain=trusted.plain,
            draws=[lambda _seed: dict(zip(packed.inputs, _fresh(list(packed.inputs.values())), strict=True))],
            terms=Terms(multiple=trusted.multiple, may_change=bool(trusted.plain.writes), may_return=True),
        ),
        holding,
    )
    if judged.reason is Reason.UNDEFINED:
        raise UsageError(UNDEFINED, "give others, or another reference")
    text = f"{judged.reason}, in a process of its own: {judged.text}"
    if judged.reason is Reason.INPUTS_CHANGED:
        raise WrongResultError(text, IN_PLACE)
    if judged.reason in (Reason.RESULT, Reason.FORM):
        raise WrongResultError(text, "let it compute its result from the values of its arguments, in every call")
    if judged.reason is Reason.CLOCK:
        raise ClockError(text, _OTHER_TIME)
    if judged.finding in (Finding.WRONG, Finding.SUSPICIOUS):
        raise UsageError(text, "let it run on fresh values of its arguments, and without the session's files")
    return f"right in {format_count(judged.checked, 'call')}, "


def _enough_ns(here_ns: float) -> float:
    return _SLOWER * here_ns + _RESOLVED_NS


def _fastest_ns(
    process: Stranger,
    check: Callable[[Span, int, Sequence[Tensor]], None],
    control: Stranger,
    inputs: Sequence[Tensor],
    workload: Workload,
    device: torch.device,
    call_ns: float,
) -> tuple[float, float]:
    """Return the times of a call in nanoseconds: the process's fastest, and the median here at the same time.

    They are taken in turns, until the process is fast enough or there is no hope. A call of each row, drawn at random,
    is checked: what is timed has to be right too.

    Raises:
        ResultsError: they differ.
    """
    fastest_ns, cost_ns, here_ns = math.inf, math.inf, [call_ns]
    for number in range(1, _MOST_SPANS + 1):
        sets = [_fresh(inputs) for _ in range(_IN_A_ROW)]
        cost_ns = min(cost_ns, control.span(sets).ns)
        span = process.span(sets, Manner(keeps_objects=True))
        fastest_ns = min(fastest_ns, span.ns)
        drawn = secrets.randbelow(_IN_A_ROW)
        check(span, drawn, sets[drawn])
        workload.make_ready(1)
        began_ns = clock.read_ns()
        workload.run()
        synchronize(device)
        here_ns.append(clock.read_ns() - began_ns)
        if number >= _CALLS and (fastest_ns - cost_ns) / _IN_A_ROW <= _enough_ns(call_ns):
            break
    return (fastest_ns - cost_ns) / _IN_A_ROW, max(call_ns, median(here_ns))


def _fresh(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors of the same layout, of values some percent smaller; whole numbers stay, which may be indices."""
    return [
        rewritten(one, lambda x: x * (1 - torch.rand_like(x) / 16)) if one.is_floating_point() else one
        for one in inputs  # a probability stays one
    ]


def _compare(first: Stranger, second: Stranger, inputs: Sequence[Tensor], *, allow_nan: bool) -> bool | None:
    """Whether two processes return the same, asked in other orders; False if one alone does not, None of no tensors.

    Raises:
        ResultsError: they differ; a result is NaN; or one alone returns a result again for other inputs now and then.
    """
    sets = [_fresh(inputs) for _ in range(_CALLS)]
    of_first = [_returned(first, one) for one in sets]
    if not allow_nan and any(bool(found.isnan().any()) for each in of_first for found in each):
        raise ResultsError(
            "a result is NaN in a process of its own, where memory that nobody has written holds NaN",
            "write every element of a result before the call returns",
        )
    if all(_same(of_first[number], second, sets[number]) for number in reversed(range(_CALLS))):
        return True if any(of_first) else None
    if _stale(sets, of_first):
        raise ResultsError(
            "a call returned, bit by bit, what the call before had returned for other inputs",
            "let each call compute its result, in memory of its own",
        )
    return False


def _stale(sets: Sequence[Sequence[Tensor]], results: Sequence[Sequence[Tensor]]) -> bool:
    """Whether a result is the one of the call before now and then, bit by bit, though the inputs are others.

    One that never changes is a table, say; a result of few values is equal by chance.
    """
    if all(same_bits(one, other) for one, other in zip(sets[0], sets[1], strict=True)):
        return False
    for of_calls in zip(*results, strict=False):
        again = [(a.dtype, a.shape) == (b.dtype, b.shape) and same_bits(a, b) for a, b in pairwise(of_calls)]
        first = of_calls[0]
        is_now_and_then = any(again) and not all(again) and first.is_floating_point()
        if is_now_and_then and torch.unique(first.float()).numel() >= _TELLING:
            return True
    return False


def _same(mine: Sequence[Tensor], other: Stranger, inputs: Sequence[Tensor]) -> bool:
    """Whether another process returns the same for these inputs; False if it does not repeat itself.

    Raises:
        ResultsError: it repeats itself, and differs.
    """
    theirs = _returned(other, inputs)
    if _agree(mine, theirs):
        return True
    if not _agree(theirs, _returned(other, inputs)):
        return False
    raise ResultsError(
        "two processes return different results for the same inputs",
        "let a result depend on its inputs alone, not on calls before",
    )


def _returned(process: Stranger, inputs: Sequence[Tensor]) -> list[Tensor]:
    return _read(process, process.span([inputs], Manner(poisons=True)), 0)


def _read(process: Stranger, span: Span, number: int) -> list[Tensor]:
    return [found for one in span.outputs[number] if (found := process.result(one)) is not None]


def _agree(mine: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    same_forms = [(one.shape, one.dtype) for one in mine] == [(one.shape, one.dtype) for one in theirs]
    return same_forms and all(alike(a, b) for a, b in zip(mine, theirs, strict=True))
