"""Makes one prediction: warm up, trace few layers or all, sum up.

The call runs on fake tensors as on CUDA (see ``fake`` and ``as_cuda``). Real tensors work too, so that a prediction can
be compared with a measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from perflab.attribution.reachable import reachable
from perflab.internals.of_torch import TorchDispatchMode
from perflab.internals.of_torch.compiler import is_compiled
from perflab.internals.of_torch.dispatch import without_torch_function
from perflab.measure.counts.collectives import Seen
from perflab.predicted.cuda.kernels import OnCuda
from perflab.predicted.gpus import DataSheet, Gpu, bound_ns, roofline_ns
from perflab.predicted.memory.account import account_of, timeline_of
from perflab.predicted.memory.replay import replay
from perflab.predicted.trace.modules import FEW, ModuleBook, Written, book_of, holdings
from perflab.predicted.trace.operators import Hidden, is_operator, multiplies
from perflab.predicted.trace.patterns import NotPeriodic
from perflab.predicted.trace.trace import Op, Trace
from perflab.predicted.trace.tracer import Run, Tracer, elements_here
from perflab.predicted.trace.unroll import same, unroll
from perflab.predicted.trace.watch import CalledOff, Watch
from perflab.predicted.world.lone_rank import calls_until_steady, lone_rank
from perflab.results.predicted import Cost, Prediction

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours
_FAILS_WHEN_CUT = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, AssertionError)
_BOUND = "bounds alone: what kernels PyTorch takes on this GPU, and what memory they need, is not modelled"
_NO_RATES = "no rate of products is published for this GPU: times are those of the bytes alone"
_UNLIKE = "every layer was traced: layers with the same structure do different work"
_UNPROVEN = "few layers were traced, and it is not proven that all do the same: tracing every layer"
_COMPILED = "torch.compile is not predicted: operators that it fuses are counted one by one"
_RECURRENT = "recurrent layers are predicted as on a CPU: cuDNN's take other memory, and fewer launches"


@dataclass(frozen=True)
class Work:
    """The call to predict, and the objects that it uses."""

    run: Run
    roots: tuple[Any, ...]
    """The objects from which everything that the call uses can be reached, before the call runs."""
    spans: tuple[str, ...] = ()
    """The phase of each span of one call, in order."""
    set_up: Callable[[], tuple[Any, ...]] | None = None
    """Makes the next call's arguments, and returns the new ``roots``; None if all calls have the same arguments."""

    def call(self) -> Any:
        """Make one call without a note of its spans, and return its result."""
        return self.run(lambda: None)

    def made_ready(self) -> Work:
        """Make the next call's arguments with ``set_up``, and return the work with its new roots."""
        return self if self.set_up is None else replace(self, roots=self.set_up())


@dataclass(frozen=True)
class Traced:
    """A trace of the whole call, and how the trace was obtained."""

    trace: Trace
    result: Any
    """The value that the call returned, computed with as many layers as were run."""
    layers_run: list[int] = field(default_factory=list)
    """The numbers of layers that were run, if the rest was unrolled; empty if every layer was run."""
    notes: list[str] = field(default_factory=list)
    seen: Seen | None = None
    """The collectives of the call; None if this process plays no rank."""


class Proofs:
    """The kinds of calls for which the trace unrolled from few layers is proven right, or proven wrong.

    A trace of few layers cannot show work that code does in one layer far from both ends (``if i == 9``). So the first
    call of each kind is also traced with every layer, and the two traces have to be equal, event by event. Two calls
    are of one kind if they call the same functions on modules of the same names and classes; sizes and precisions may
    differ.
    """

    def __init__(self) -> None:
        self.known: dict[Hashable, bool] = {}
        """Whether the unrolled trace was right, by kind."""
        self.given_up: dict[Hashable, str] = {}
        """Why the trace of every layer was called off, by kind; the unrolled trace is then used unproven."""
        self.written: Written = WeakKeyDictionary()
        """The attributes that runs of few layers have set in models that several cases share."""

    def kind(self, work: Work, book: ModuleBook, reached: Iterable[Any]) -> Hashable:
        """Return the kind of a call: its spans, the names and classes of its modules, and its functions."""
        codes = {one.__code__ for one in reached if isinstance(one, FunctionType)}
        modules = tuple((book.of(module), type(module)) for module in book.modules)
        return work.spans, modules, frozenset((code.co_filename, code.co_firstlineno) for code in codes)


def traced(
    work: Work, hidden: Hidden, *, proofs: Proofs | None = None, whole: bool = False, watch: Watch | None = None
) -> Traced:
    """Trace a call in its steady state: after a warm-up call, in which optimizers make their state.

    A long stack of alike layers is cut to a few layers, with two different lengths, and the trace of all layers is
    unrolled from the two traces. Every layer is run if the unrolled trace is proven wrong, if the layers do not repeat,
    if the call fails with few layers, or if ``whole`` is set.

    Args:
        work: the call.
        hidden: temporary memory and launches of kernels, which operators do not show.
        proofs: results for calls traced before; this call's result is added. None: layers that are built alike are
            taken to do alike work.
        whole: run every layer.
        watch: is shown each operator; the proof that layers are alike is a part of its own.

    Raises:
        Exception: whatever the work raises.
        CalledOff: the watch stopped the trace of the call itself. If the watch stops the proof, a note says so.
    """
    reached = list(reachable(work.roots))
    book = book_of(reached, None if proofs is None else proofs.written)
    notes = [_COMPILED] if any(map(is_compiled, reached)) else []
    on_fakes = hidden.device_type is None  # a dry run calls cuDNN
    if on_fakes and any(isinstance(one, torch.nn.RNNBase | torch.nn.RNNCellBase) for one in reached):
        notes.append(_RECURRENT)
    # What shards a model, or averages its gradients, has made its plans for all layers.
    if book.long_stacks and not whole and lone_rank() is None:
        try:
            result, more = _trace_cut(work, book, hidden, FEW + 1, watch, warm_up=True)
            _, few = _trace_cut(work, book, hidden, FEW, watch, warm_up=False)
            trace = unroll(few, more, book.layers)
            gained = {trace.layers[one] - number for one, number in more.layers.items() if few.layers[one] < number}
            if len(gained) == 1:  # a call may give its layers parameters of their own: those left out have none yet
                parameters = more.parameters + gained.pop() * (more.parameters - few.parameters)
            else:
                held = (one.tensor for one in holdings(reached, book) if one.category == "parameters")
                parameters = sum(map(elements_here, held))
            unrolled = Traced(replace(trace, parameters=parameters), result, [FEW, FEW + 1], notes)
            if proofs is None:
                return unrolled
            kind = proofs.kind(work, book, reached)
            if kind not in proofs.known and kind not in proofs.given_up:
                try:
                    with watch.part("every layer") if watch is not None else nullcontext():
                        result, seen, _ = _trace_whole(work, book, hidden, watch)
                except CalledOff as end:
                    proofs.given_up[kind] = f"{_UNPROVEN} {end}"
                else:
                    proofs.known[kind] = same(_without_launches(unrolled.trace), _without_launches(seen))
                    if not proofs.known[kind]:
                        return Traced(seen, result, [], [*notes, _UNLIKE])
            if kind in proofs.given_up:
                return replace(unrolled, notes=[*notes, proofs.given_up[kind]])
            if proofs.known[kind]:
                return unrolled
            notes.append(_UNLIKE)
        except NotPeriodic:
            notes.append(_UNLIKE)
        except _FAILS_WHEN_CUT as error:  # the call depends on the number of layers, or fails with any number
            notes.append(f"every layer was traced: with {FEW + 1} layers the call raises {type(error).__name__}")
    result, found, communicated = _trace_whole(work, book, hidden, watch)
    return Traced(found, result, [], notes, communicated)


def _trace_whole(work: Work, book: ModuleBook, hidden: Hidden, watch: Watch | None) -> tuple[Any, Trace, Seen | None]:
    """Warm up, and trace every layer under its name in the book, made before any run: runs set attributes in layers."""
    for _ in range(calls_until_steady()):
        with watched(watch):
            result = work.call()
            work = work.made_ready()
    alone = lone_rank()
    begun = alone.seen.copy() if alone is not None else None
    on_fakes = alone.seen if alone is not None and not alone.over_nocuda else None
    tracer = Tracer(book, holdings(reachable(work.roots), book), work.spans, hidden, watch, on_fakes)
    found = tracer.trace_of(work.run)
    return result, found, alone.seen.since(begun) if alone is not None and begun is not None else None


def _without_launches(found: Trace) -> Trace:
    """Return the trace with all launches set to 0.

    Launches are an estimate, and those of operators over lists, made in chunks, do not grow linearly with the layers.
    """
    events = tuple(replace(event, launches=0) if isinstance(event, Op) else event for event in found.events)
    return replace(found, events=events)


def predict(
    work: Work,
    gpu: DataSheet,
    hidden: Hidden,
    *,
    proofs: Proofs | None = None,
    whole: bool = False,
    watch: Watch | None = None,
) -> tuple[Prediction, Traced]:
    """Predict one call on a GPU; for a GPU that is not modelled, only bounds of the call.

    Raises:
        Exception: whatever the work raises.
        CalledOff: the watch stopped the trace.
    """
    if isinstance(hidden, OnCuda):
        hidden = OnCuda(gpu) if isinstance(gpu, Gpu) else Hidden()
    found = traced(work, hidden, proofs=proofs, whole=whole, watch=watch)
    account = account_of(found.trace, roofline_ns=lambda op: roofline_ns(op, gpu))
    modelled = isinstance(gpu, Gpu)
    played = replay(found.trace, gpu.workspace_bytes)
    now = Prediction(
        **vars(account),
        gpu=gpu.name,
        is_bound=not modelled,
        torch=torch.__version__.partition("+")[0],
        timeline=timeline_of(found.trace),
        parameters=found.trace.parameters,
        layers=dict(found.trace.layers),
        workspace_bytes=played.workspace_bytes,
        allocated_bytes=played.peak_allocated_bytes if modelled else 0,
        reserved_bytes=played.peak_reserved_bytes if modelled else 0,
        bound_ns=sum(bound_ns(event, gpu) or 0.0 for event in found.trace.events if isinstance(event, Op)) or None,
        roofline_ns=sum(cost.roofline_ns for cost in account.costs) or None,
        traced_layers=found.layers_run,
        notes=[
            *([] if modelled else [_BOUND]),
            *([] if gpu.rates else [_NO_RATES]),
            *found.notes,
            *_uncounted(account.costs),
        ],
    )
    return now, found


def _trace_cut(
    work: Work, book: ModuleBook, hidden: Hidden, count: int, watch: Watch | None, *, warm_up: bool
) -> tuple[Any, Trace]:
    with book.cut(count) as left_out:
        result = None
        if warm_up:
            with watched(watch):
                result = work.call()
        with watched(watch):
            work = work.made_ready()
        held = holdings(reachable(work.roots), book, left_out)
        return result, Tracer(book, held, work.spans, hidden, watch).trace_of(work.run)


def _uncounted(costs: Sequence[Cost]) -> list[str]:
    """Return a note that names the operators that multiply and have no FLOP formula; empty if there are none."""
    names = dict.fromkeys(cost.operator for cost in costs if not cost.flops and multiplies(cost.operator))
    return [f"FLOPs of {', '.join(names)} are not counted: time and FLOPs are too low"] if names else []


def watched(watch: Watch | None) -> AbstractContextManager[object]:
    """Return a context in which each operator is reported to the watch, if there is one."""
    return _Watched(watch) if watch is not None else nullcontext()


class _Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that reports every operator to a watch and calls the operator unchanged."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_operator(func):  # not C++'s questions for a tensor's device, where nothing may be raised
            self._watch.operator()
        with without_torch_function():  # as in a trace, without users' __torch_function__
            return func(*args, **(kwargs or {}))
