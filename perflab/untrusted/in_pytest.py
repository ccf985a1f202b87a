"""``--perf-adversarial``: what ``perf`` measures and ``verify`` checks, once more in processes of its own.

The session itself has imported the candidate, with the tests that name it: what happens at an import happens here too.
``perflab verify`` judges without that. Candidates are pickled by cloudpickle, those of test files by value, so that
their processes have no test file, and no reference that stands in one.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

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
from perflab.measurement.callables import Comparison
from perflab.processes.child import Launch
from perflab.processes.peer import How
from perflab.results.records import Verdict
from perflab.running.case.reference import IN_PLACE, UNDEFINED, Reference, Trusted
from perflab.units import format_count, format_ns
from perflab.untrusted.command import forking, held
from perflab.untrusted.errors import EndedError, RaisedError, RefusedError, UnfitError, refusing
from perflab.untrusted.judge import Judge, Terms
from perflab.untrusted.messages import Manner, Role, TensorAt
from perflab.untrusted.modes import InModes
from perflab.untrusted.race import Race
from perflab.untrusted.records import MOST_TEXT, Reason
from perflab.untrusted.stranger import Holding, Source, Span, Stranger, nothing

if TYPE_CHECKING:
    import pytest

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_LIMIT_S = 300.0
_CALLS, _IN_A_ROW = 6, 4
"""Calls that show whether a candidate without a reference repeats itself, in one order and in the other, and pairs of
turns with it, at least; calls that are timed together, at least."""
_BETWEEN = 12
"""Calls of a candidate between the two that ``verify`` checks."""
_BUDGET_S = 3.0
"""The time in seconds of the turns in which it is told whether a time is bent, if the machine is busy."""
_TELLING = 64
"""Distinct values of a random result that never are equal, bit by bit, by chance."""
_APART = "a process of its own"
_SLOWER, _RESOLVED_NS = 3.0, 200_000
"""A time is bent if a call in a process of its own takes so many times as long as measured, and so many nanoseconds
more: inputs are fresh there, and caches hold none of them."""
_Key = TypeVar("_Key", str, int)


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
    start: Launch | None = None
    """Starts their processes, all as forks of one; None before the first."""

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
            self.start = self.start or self.stack.enter_context(forking())
            holding = self.stack.enter_context(held("cpu", self.limit_s, folders, hidden, self.start))
            self.holdings[secret] = holding
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
            "keep what it needs in arguments and module-level functions, not in handles, locks or open files; "
            "of a function that torch.compile made, measure a compiled module, or compile it in its first call",
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
    device = next(iter(inputs.values())).device
    in_modes = InModes(functools.partial(candidate, **task.settings), device.type)
    packed = _pickled(in_modes, _name_of(candidate))
    holding = replace(running.holding(trusted), device=str(device))
    with _told(), Stranger(Role.CANDIDATE, packed, holding) as process:
        run_candidate(_Held(process), _fresh(inputs), task, 0, "a first call")  # in which it may compile
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
            self.process.span([list(_fresh(dict(enumerate(inputs))).values())], Manner(drops=False))
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
        given = list(flat.inputs.values())
        self.inputs = {name: copied(one) for name, one in flat.inputs.items()}  # the session's calls may overwrite them
        flat.inputs = {}
        device_type = next((one.device.type for one in self.inputs.values()), "cpu")
        # A cast of an argument that needs a gradient would be kept as well, of each call's.
        keeps_casts = not any(one.requires_grad for one in given)
        self.call = _pickled(InModes(flat, device_type, keeps_casts=keeps_casts), _name_of(call))


_OF_INPUTS_ALONE = "let a result depend on its inputs alone, not on calls before"
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
    """Judge a measured workload in a process of its own, and return what that has shown.

    Args:
        packed: the workload as it was before it was measured.
        workload: the workload as it is; it is timed again in turns with its process: the machine may be busier now.
        device: the device of the work.
        call_ns: the time of a call as it was measured, in nanoseconds.
        progress: called as each process begins, whose first call may compile.
        allow_nan: whether results may be NaN, which memory is that nobody has written.

    Raises:
        UsageError: the workload breaks in a process of its own, or the reference has no answer.
        WrongResultError: its results are not those of the reference.
        ResultsError: without a reference, two processes return other results for the same inputs.
        ClockError: a call takes far longer there than was measured here, or its device works on after a call.
    """
    (running,) = _RUNNING
    trusted = packed.trusted
    holding = replace(running.holding([] if trusted is None else [trusted.definition]), device=str(device))
    terms = Terms(
        may_change=trusted is None or bool(trusted.plain.writes),
        may_return=True,
        wide=trusted is not None,
        budget_s=0.0,
        threshold=_SLOWER - 1,
        pairs=_CALLS,
        in_a_row=_IN_A_ROW,
    )
    with contextlib.ExitStack() as stack, _refused(trusted):
        progress(_APART)
        witness: Definition | _Twin
        if trusted is None:
            witness = _Twin(
                stack.enter_context(Stranger(Role.CANDIDATE, packed.call, holding)), packed.inputs, allow_nan
            )
            progress(_APART)
        else:
            witness = Definition(trusted.exact, trusted.plain, packed.inputs, trusted.multiple)
        judge = Judge(witness, [lambda _seed: _fresh(packed.inputs)], terms, holding)
        candidate = judge.begin(packed.call, stack)
        if trusted is not None:  # a twin's calls are poisoned too
            sets = judge.sets(1)
            span = candidate.span([list(sets[0].values())], Manner(poisons=True))
            judge.calls += 1
            judge.check(candidate, span, sets, 0, (0, 0))
        control = stack.enter_context(Stranger(Role.CONTROL, nothing(holding.device), holding))
        progress(_APART)
        here = _Here(workload, device, control, progress)
        race = Race(judge, candidate, here, control)
        found = race.run()
        if _is_longer(found, call_ns):  # the machine may be busy: nobody is accused by a few pairs alone
            judge.terms = replace(terms, budget_s=_BUDGET_S)
            race = Race(judge, candidate, here, control)
            found = race.run()
        is_bent = judge.terms is not terms and is_bent_time(found, race.fastest_ns, call_ns)
        if device.type != "cpu":
            judge.look(candidate)
        told = "" if isinstance(witness, Definition) else witness.told(judge.checked)
    if is_bent:
        raise ClockError(
            f"a call was measured as {format_ns(call_ns)}, and takes {format_ns(found.candidate_ns)} in a process of "
            "its own, on fresh inputs and by a clock outside of it",
            _OTHER_TIME,
        )
    if trusted is not None and not judge.checked:
        raise UsageError(UNDEFINED, "give others, or another reference")
    return told or f"right in {format_count(judge.checked, 'call')}"


def _is_longer(found: Comparison, call_ns: float) -> bool:
    """Whether a call takes so much longer in a process of its own that its measured time looks bent."""
    return found.candidate_ns > _SLOWER * max(call_ns, found.base_ns) + _RESOLVED_NS


def is_bent_time(found: Comparison, fastest_ns: float, call_ns: float) -> bool:
    """Whether a measured time leaves out work that a process of the candidate's own shows.

    Such work takes its time in every row of calls there; a busy machine delays some of them.

    Args:
        found: turns of that process with calls in this session.
        fastest_ns: the time of a call in that process's fastest row, in nanoseconds.
        call_ns: the time of a call as it was measured, in nanoseconds.
    """
    is_every_row = fastest_ns > _SLOWER * call_ns + _RESOLVED_NS
    return is_every_row and _is_longer(found, call_ns) and found.verdict is Verdict.REGRESSED


@contextlib.contextmanager
def _refused(trusted: Trusted | None) -> Iterator[None]:
    """Turn what speaks against a workload into an error of the case."""
    try:
        with refusing():
            yield
    except RefusedError as error:
        text = f"{error.reason}, in a process of its own: {error.text}"
        if error.reason is Reason.CLOCK:
            raise ClockError(text, _OTHER_TIME) from None
        if error.reason is Reason.INPUTS_CHANGED:
            raise WrongResultError(text, IN_PLACE) from None
        if error.reason not in (Reason.RESULT, Reason.FORM):
            remedy = "let it run on fresh values of its arguments, and without the session's files"
            raise UsageError(text, remedy) from None
        if trusted is None:
            is_form = error.reason is Reason.FORM
            raise ResultsError(error.text, "return tensors" if is_form else _OF_INPUTS_ALONE) from None
        raise WrongResultError(text, "let it compute its result from its arguments' values, in every call") from None


class _Here:
    """A measured workload as a rival: timed in this session, after the question that its process is asked too."""

    role = Role.RIVAL

    def __init__(self, workload: Workload, device: torch.device, control: Stranger, progress: Progress) -> None:
        self._workload, self._device, self._control, self._progress = workload, device, control, progress

    def span(self, sets: Sequence[Sequence[Tensor]]) -> Span:
        """Call the workload once, with its own arguments, and return the time of as many calls as there are sets."""
        self._progress(_APART)  # a sign of life
        asked_ns = self._control.span(sets).ns
        self._workload.make_ready(1)
        began_ns = clock.read_ns()
        self._workload.run()
        synchronize(self._device)
        spent_ns = asked_ns + len(sets) * (clock.read_ns() - began_ns)
        return Span(spent_ns, spent_ns)


class _Twin:
    """Another process of a candidate, which tells what the candidate returns: all there is without a reference.

    Both are asked for the same inputs, after other calls each, so what depends on calls before is another result.
    """

    outputs = None

    def __init__(self, process: Stranger, example: Mapping[str, Tensor], allow_nan: bool) -> None:
        """Learn whether the process repeats itself, asked in another order.

        Raises:
            RefusedError: it breaks.
            ResultsError: a result is NaN; or it is, now and then, the one of the call before.
        """
        self._process = process
        sets = [_fresh(example) for _ in range(_CALLS)]
        with refusing():
            process.span([list(sets[0].values())])  # in which it may compile
            process.narrow()
        found = [self._returned(one) for one in sets]
        if not allow_nan and any(bool(one.isnan().any()) for each in found for one in each):
            raise ResultsError(
                "a result is NaN in a process of its own, where memory that nobody has written holds NaN",
                "write every element of a result before the call returns",
            )
        self._has_results = any(found)
        self._is_constant = not _are_same(sets) and all(_agree(a, b, same_bits) for a, b in pairwise(found))
        self._repeats = True
        for inputs, results in reversed(list(zip(sets, found, strict=True))):
            if self._repeats:
                self._ask_again(inputs, results)
        if not self._repeats and _stale(sets, found):
            raise ResultsError(
                "a call returned, bit by bit, what the call before had returned for other inputs",
                "let each call compute its result, in memory of its own",
            )

        self._first = sets[0], found[0]

    def _ask_again(self, inputs: Mapping[str, Tensor], results: Sequence[Tensor]) -> None:
        """Learn whether a call repeats itself after others.

        Raises:
            ResultsError: it has another result now, and has it again.
        """
        if _agree(results, now := self._returned(inputs)):
            return
        self._repeats = False
        later = [now, *(self._returned(inputs) for _ in range(2))]
        # Whole numbers, such as drawn indices, can be equal twice by chance.
        # So can few values in 16 bit: a state that moves has not left them from one call to the next.
        is_telling = any(
            bool((each != each.round()).any()) and (each.itemsize > 2 or torch.unique(each.float()).numel() >= _TELLING)
            for each in results
            if each.is_floating_point()
        )
        if is_telling and any(_agree(a, b, same_bits) for a, b in pairwise(later)):
            raise ResultsError("the same inputs have another result after further calls", _OF_INPUTS_ALONE)

    def told(self, checked: int) -> str:
        """Ask for the first call once more, and return what is known now that so many were compared.

        Two processes may turn wrong at the same time; then they agree with each other, and not with what they said.

        Raises:
            ResultsError: the first inputs have another result now.
        """
        if self._repeats:
            self._ask_again(*self._first)
        if not self._has_results:
            return "returns no tensor to compare"
        if self._is_constant:
            return "returns the same for all inputs"
        return f"agrees in {format_count(checked, 'call')}" if self._repeats else "results differ from call to call"

    def takes(self, inputs: Mapping[str, Tensor]) -> bool:
        """Whether other values may be tried: which ones have a result is not known."""
        return False

    def wrong(
        self, inputs: Mapping[str, Tensor], got: Mapping[str, Tensor | None], kind: Hashable, *, wholly: bool
    ) -> str | None:
        """Return that this process has other results for these inputs; None if it does not repeat itself."""
        if not self._repeats:
            return None
        mine = [one for one in got.values() if one is not None]
        theirs = self._returned(inputs)
        if _agree(mine, theirs):
            return ""
        # A state that moves, as in training, is another in each call, if only by a bit.
        later = [theirs, *(self._returned(inputs) for _ in range(2))]
        self._repeats = any(_agree(a, b, same_bits) for a, b in pairwise(later))
        return "two processes return different results for the same inputs" if self._repeats else None

    def _returned(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        with refusing():
            span = self._process.span([list(inputs.values())], Manner(poisons=True))
            return [found for one in span.outputs[0] if (found := self._process.result(one)) is not None]


def _agree(mine: Sequence[Tensor], theirs: Sequence[Tensor], how: Callable[[Tensor, Tensor], bool] = alike) -> bool:
    same_forms = [(one.shape, one.dtype) for one in mine] == [(one.shape, one.dtype) for one in theirs]
    return same_forms and all(map(how, mine, theirs))


def _are_same(sets: Sequence[Mapping[str, Tensor]]) -> bool:
    """Whether the first two sets of inputs have the same values: whole numbers have no fresh ones."""
    return all(same_bits(one, sets[1][name]) for name, one in sets[0].items())


def _stale(sets: Sequence[Mapping[str, Tensor]], results: Sequence[Sequence[Tensor]]) -> bool:
    """Whether a result is the one of the call before now and then, bit by bit, though the inputs are others.

    One that never changes is a table, say; a result of few values is equal by chance.
    """
    if _are_same(sets):
        return False
    for of_calls in zip(*results, strict=False):
        again = [_agree([a], [b], same_bits) for a, b in pairwise(of_calls)]
        first = of_calls[0]
        is_now_and_then = any(again) and not all(again) and first.is_floating_point()
        if is_now_and_then and torch.unique(first.float()).numel() >= _TELLING:
            return True
    return False


def _fresh(inputs: Mapping[_Key, Tensor]) -> dict[_Key, Tensor]:
    """Return tensors of the same layout, of values some percent smaller; whole numbers stay, which may be indices."""
    return {
        name: rewritten(one, lambda x: x * (1 - torch.rand_like(x) / 16)) if one.is_floating_point() else one
        for name, one in inputs.items()  # a probability stays one
    }
