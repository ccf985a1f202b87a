"""Makes one prediction: warm up, trace few layers or all, sum up.

Called on fake tensors, as on CUDA; see ``fake`` and ``as_cuda``. Works on real tensors too, which is how it is held
against what really happens.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from perflab.predicted.cuda.attention_kernels import ON_HOST
from perflab.predicted.cuda.fake import is_compiled
from perflab.predicted.cuda.kernels import H100, hidden_blocks, launches, lists_of
from perflab.predicted.cuda.multi_tensor import Lists
from perflab.predicted.cuda.reductions import Processor
from perflab.predicted.gpus.names import Gpu
from perflab.predicted.gpus.roofline import bound_ns, roofline_ns
from perflab.predicted.layers.alike import Written
from perflab.predicted.layers.patterns import NotPeriodic
from perflab.predicted.layers.same import same
from perflab.predicted.layers.unroll import unroll
from perflab.predicted.memory.account import account_of, timeline_of
from perflab.predicted.memory.replay import replay
from perflab.predicted.records import Cost, Prediction
from perflab.predicted.trace.live_before import holdings
from perflab.predicted.trace.modules import FEW, ModuleBook, book_of
from perflab.predicted.trace.operators import multiplies
from perflab.predicted.trace.trace import Op, Trace
from perflab.predicted.trace.tracer import Hidden, Run, trace
from perflab.predicted.trace.watch import CalledOff, Watch, part_of
from perflab.predicted.trace.watched import watched
from perflab.reachable import reachable

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


@dataclass(frozen=True)
class Work:
    """What is to be predicted."""

    run: Run
    roots: tuple[Any, ...]
    """What it has in its hands before it runs."""
    spans: tuple[str, ...] = ()
    """The phase of each span of one call."""
    set_up: Callable[[], tuple[Any, ...]] | None = None
    """Makes what the next call is given, and returns what it then has in its hands; None: calls are given the same."""

    def made_ready(self) -> Work:
        """The same, when what the next call is given has been made."""
        return self if self.set_up is None else replace(self, roots=self.set_up())


@dataclass(frozen=True)
class Traced:
    """A trace of the whole work, and how it was come by."""

    trace: Trace
    result: Any
    """What a call of the work returned: with as many layers as were run."""
    layers_run: list[int] = field(default_factory=list)
    """How many layers were run, where the rest was unrolled."""
    notes: list[str] = field(default_factory=list)


class Proofs:
    """For which models and calls the trace of all layers is known to be what few layers make of it, or not to be.

    What code does in one layer far from both ends (``if i == 9``) no trace of a few shows. So the first call of a kind
    is run whole beside that, and has to be the same, event by event. Of a kind are calls of the same functions on
    modules of the same names and classes: other sizes and precisions are believed.
    """

    def __init__(self) -> None:
        self.known: dict[Hashable, bool] = {}
        """By kind: whether it was right."""
        self.given_up: dict[Hashable, str] = {}
        """By kind: why it was not run whole to the end, so that few layers are believed."""
        self.written: Written = WeakKeyDictionary()
        """What runs of few layers have left in models that several cases share."""

    def kind(self, work: Work, book: ModuleBook, reached: Iterable[Any]) -> Hashable:
        """What calls have in common that are proven together."""
        codes = {one.__code__ for one in reached if isinstance(one, FunctionType)}
        modules = tuple((book.of(module), type(module)) for module in book.modules)
        return work.spans, modules, frozenset((code.co_filename, code.co_firstlineno) for code in codes)


def traced(
    work: Work, hidden: Hidden, *, proofs: Proofs | None = None, whole: bool = False, watch: Watch | None = None
) -> Traced:
    """Trace a call in its steady state: after one that is not looked at, in which optimizers make their state.

    Where a stack of alike layers is long, it is cut to a few for that, twice, and the trace of all is made of the two;
    it is run whole where that cannot be proven right, or ``whole`` is asked for.

    Args:
        work: what is called.
        hidden: what operators take inside of themselves.
        proofs: what is known of such calls; is added to. None: the layers are believed to be what they are built as.
        whole: run every layer.
        watch: is shown each operator; proving that layers are alike is a part by itself.

    Raises:
        Exception: whatever the work raises.
        CalledOff: the watch has seen enough of the call itself. Where it has of the proof, that is a note.
    """
    reached = list(reachable(work.roots))
    book = book_of(reached, None if proofs is None else proofs.written)
    notes = [_COMPILED] if is_compiled(*(one for one in reached if isinstance(one, _CAN_BE_COMPILED))) else []
    if book.long_stacks and not whole:
        try:
            result, more = _trace_cut(work, book, hidden, FEW + 1, watch, warm_up=True)
            _, few = _trace_cut(work, book, hidden, FEW, watch, warm_up=False)
            unrolled = Traced(unroll(few, more, book.layers), result, [FEW, FEW + 1], notes)
            if proofs is None:
                return unrolled
            kind = proofs.kind(work, book, reached)
            if kind not in proofs.known and kind not in proofs.given_up:
                try:
                    with part_of(watch, "every layer"):
                        result, seen = _trace_whole(work, book, hidden, watch)
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
        except _FAILS_WHEN_CUT as error:  # it depends on how many layers there are, or fails anyway
            notes.append(f"every layer was traced: with {FEW + 1} layers the call raises {type(error).__name__}")
    result, found = _trace_whole(work, book, hidden, watch)
    return Traced(found, result, [], notes)


def _trace_whole(work: Work, book: ModuleBook, hidden: Hidden, watch: Watch | None) -> tuple[Any, Trace]:
    """Every layer, under the names that the book gave them before anything ran: runs leave their traces in layers."""
    with watched(watch):
        result = work.run(_nothing)
        work = work.made_ready()
    return result, trace(work.run, work.spans, book, holdings(reachable(work.roots), book), hidden, watch)


def _without_launches(found: Trace) -> Trace:
    """Operators over lists launch in chunks, so their launches, an estimate anyway, are no straight line."""
    events = tuple(replace(event, launches=0) if isinstance(event, Op) else event for event in found.events)
    return replace(found, events=events)


_FAILS_WHEN_CUT = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, AssertionError)


_UNLIKE = "every layer was traced: layers with the same structure do different work"
_UNPROVEN = "few layers were traced, and it is not proven that all do the same: tracing every layer"
_COMPILED = "torch.compile is not predicted: operators that it fuses are counted one by one"
_CAN_BE_COMPILED = (torch.nn.Module, FunctionType)


def predict(
    work: Work,
    gpu: Gpu,
    hidden: Hidden,
    *,
    proofs: Proofs | None = None,
    whole: bool = False,
    watch: Watch | None = None,
) -> tuple[Prediction, Traced]:
    """Predict one call on a GPU.

    Raises:
        Exception: whatever the work raises.
        CalledOff: the watch has seen enough.
    """
    if isinstance(hidden, OnCuda):
        hidden = hidden.on(gpu)
    found = traced(work, hidden, proofs=proofs, whole=whole, watch=watch)
    account = account_of(found.trace, roofline_ns=lambda op: roofline_ns(op, gpu))
    # cuBLAS has a workspace for each thread that multiplies, and on CUDA backward runs in one of autograd's.
    threads = len({one.place.in_backward for one in found.trace.events if isinstance(one, Op) and one.flops})
    played = replay(found.trace, gpu.workspace_bytes * threads)
    now = Prediction(
        **vars(account),
        gpu=gpu.name,
        torch=torch.__version__.partition("+")[0],
        timeline=timeline_of(found.trace),
        parameters=found.trace.parameters,
        layers=dict(found.trace.layers),
        workspace_bytes=gpu.workspace_bytes * threads,
        allocated_bytes=played.peak_allocated_bytes,
        reserved_bytes=played.peak_reserved_bytes,
        bound_ns=sum(bound_ns(event, gpu) or 0.0 for event in found.trace.events if isinstance(event, Op)) or None,
        roofline_ns=sum(cost.roofline_ns for cost in account.costs) or None,
        traced_layers=found.layers_run,
        notes=[*found.notes, *_uncounted(account.costs)],
    )
    return now, found


def _trace_cut(
    work: Work, book: ModuleBook, hidden: Hidden, count: int, watch: Watch | None, *, warm_up: bool
) -> tuple[Any, Trace]:
    with book.cut(count) as left_out:
        result = None
        if warm_up:
            with watched(watch):
                result = work.run(_nothing)
        with watched(watch):
            work = work.made_ready()
        held = holdings(reachable(work.roots), book, left_out)
        return result, trace(work.run, work.spans, book, held, hidden, watch)


class OnCuda(Hidden):
    """What CUDA's kernels take and launch inside of one operator.

    Args:
        gpu: as many multiprocessors divide a sum; by default an H100's.
    """

    def __init__(self, gpu: Processor = H100) -> None:
        self._gpu = gpu

    def on(self, gpu: Gpu) -> OnCuda:
        """The same on a GPU."""
        return OnCuda(Processor(gpu.sms, gpu.architecture))

    def blocks_of(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
        """Temporary memory of one call."""
        return hidden_blocks(name, args, kwargs, self._gpu)

    def on_host(self, name: str) -> tuple[int, ...]:
        """Positions of results that are in the host's memory."""
        return ON_HOST.get(name.removeprefix("aten::"), ())

    def launches_of(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Kernels that one call launches."""
        return launches(name, args, kwargs, self._gpu)

    def lists_of(self, name: str, args: tuple[Any, ...]) -> Lists | None:
        """Of an operator over lists, what its launches follow from."""
        return lists_of(name, args)


ON_CUDA = OnCuda()


def _nothing() -> None:
    """Nobody wants to know when a span ends."""


def _uncounted(costs: Sequence[Cost]) -> list[str]:
    """What multiplies, and nobody has a formula of."""
    names = dict.fromkeys(cost.operator for cost in costs if not cost.flops and multiplies(cost.operator))
    return [f"FLOPs of {', '.join(names)} are not counted: time and FLOPs are too low"] if names else []
