"""Traces a run: operators and blocks of memory, with the module and line that asked for each.

The tracer works below autograd, where each operator is dispatched, so it sees the operators that backward calls too. It
never reads values, so it treats fake tensors and real ones alike. The tracer finds the forward's place of a backward
node by the sequence number that autograd gives both. A block is freed when its storage dies.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, groupby
from typing import Any

import torch
from torch import Tensor, nn

from perflab.attribution.places import hooked
from perflab.attribution.reachable import collector_off
from perflab.base.user_lines import line_of
from perflab.internals.of_torch import TorchDispatchMode
from perflab.internals.of_torch.dispatch import backward_code, is_composite, without_torch_function
from perflab.internals.of_torch.patched import attributes_replaced
from perflab.internals.of_torch.tracing import (
    current_node,
    is_in_backward,
    is_view,
    last_sequence_number,
    parts_of,
    sequence_number,
    storage_key,
)
from perflab.measure.counts.collectives import Seen
from perflab.predicted.cuda.devices import on_host
from perflab.predicted.trace.modules import Holding, ModuleBook
from perflab.predicted.trace.operators import (
    COLLECTIVE,
    FUNCTIONAL,
    Hidden,
    Kind,
    are_of_many_ranks,
    bytes_of,
    dtype_of,
    flops_of,
    in_place,
    is_causal_call,
    is_operator,
    kind_of,
    tensors_in,
)
from perflab.predicted.trace.trace import Alloc, Event, Free, Layer, Lists, Op, Part, Place, Saved, Trace, Use
from perflab.predicted.trace.watch import Watch
from perflab.results.peak import GATHERED
from perflab.results.profile import BACKWARD

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_CAST = "aten::_to_copy"
_WAIT = f"{FUNCTIONAL}wait_tensor"
_RESIZE, _RESIZED = torch.UntypedStorage.resize_, "storage.resize_"
_GATHERS = (f"{COLLECTIVE}allgather", f"{COLLECTIVE}_allgather")
Run = Callable[[Callable[[], None]], Any]
"""A function that does the work once, calls its argument at the end of each span, and returns the result."""


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that records every operator of a run.

    Args:
        book: names of the modules.
        held: the tensors alive before the run.
        spans: the phase of each span, in order; empty if there are no phases.
        hidden: the memory and launches inside of operators.
        watch: is notified of each operator.
        seen: is notified of functional collectives, which call no backend on fake tensors.
    """

    def __init__(
        self,
        book: ModuleBook,
        held: Iterable[Holding],
        spans: tuple[str, ...],
        hidden: Hidden,
        watch: Watch | None = None,
        seen: Seen | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._book, self._hidden, self._watch, self._seen = book, hidden, watch, seen
        self._spans, self._span = spans, 0
        self._events: list[Event] = []
        self._held: list[Alloc] = []
        self._categories: dict[int, str] = {}
        self._saved: dict[int, Saved] = {}
        self._layers: dict[int, Layer | None] = {}
        self._owned: set[int] = set()
        """The blocks that belong to a layer wherever they are used.

        These are a layer's held blocks, gradients, and what operators outside of modules make from such blocks.
        """
        self._blocks: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._next_block = 0
        self._modules: list[tuple[int, str, Layer | None]] = []
        self._places: dict[int, tuple[Place, Layer | None]] = {}
        self._of_parameter: dict[int, tuple[str, Layer | None]] = {}
        self._parameters: list[Tensor] = []
        self._layer: Layer | None = None
        self._made_in: dict[int, int] = {}
        """The number of the backward node that made a block, by block number."""
        self._taken_over: tuple[int, int, int, int] | None = None
        """The latest operator's result, if autograd would have made it in place: the operand's block number, the
        storage key of the result, the index of its ``Alloc``, and the number of events recorded by then."""
        self._ended_at: int | None = None
        self._casts: set[int] = set()
        self._at_once: set[int] = set()
        """The indices of frees in arbitrary order: autocast frees its cache of casts in the order of addresses."""
        self._hold(held)

    def trace_of(self, run: Run) -> Trace:
        """Run the work once, and return the trace of the run.

        Raises:
            Exception: whatever ``run`` raises.
            CalledOff: the watch stopped the tracing.
        """
        with collector_off():  # until the trace is made: cycles freed before would count as blocks of the result
            with self.watching():
                result = run(self._end_span)
                self._ended_at = len(self._events)  # blocks freed from now on die with the call's result
                self._layer = None
                del result
            return self.trace()

    # --- blocks held before the run ----------------------------------------------------------------------------

    def _hold(self, held: Iterable[Holding]) -> None:
        for one in held:
            if one.category == "parameters":
                self._of_parameter[id(one.tensor)] = (one.module, one.layer)
                self._parameters.append(one.tensor)
            place = Place(module=one.module)
            for block, size_bytes in self._new_blocks([one.tensor]):
                self._held.append(Alloc(block, size_bytes, place, "", one.layer))
                self._categories[block] = one.category
                self._layers[block] = one.layer
                if one.layer is not None:
                    self._owned.add(block)

    def _new_blocks(self, tensors: Iterable[Tensor]) -> Iterator[tuple[int, int]]:
        strided = (one for one in tensors if one.layout is torch.strided)
        for tensor in chain.from_iterable(map(parts_of, strided)):
            if self._is_elsewhere(tensor):
                continue
            storage = tensor.untyped_storage()
            if storage_key(storage) not in self._blocks:
                yield from self._new_block(storage)

    def _new_block(self, storage: torch.UntypedStorage) -> Iterator[tuple[int, int]]:
        size_bytes = storage.nbytes()
        if size_bytes:
            self._next_block += 1
            key, block = storage_key(storage), self._next_block
            self._blocks[key] = (block, weakref.ref(storage, lambda _: self._let_go(key)))
            yield block, size_bytes

    def _is_elsewhere(self, tensor: Tensor) -> bool:
        wanted = self._hidden.device_type
        return on_host(tensor) or (wanted is not None and tensor.device.type != wanted)

    def _block_of(self, tensor: Tensor) -> int | None:
        part = next(parts_of(tensor), None) if tensor.layout is torch.strided else None
        found = self._blocks.get(storage_key(part.untyped_storage())) if part is not None else None
        return found[0] if found is not None else None

    def _let_go(self, key: int) -> None:
        block, _ = self._blocks.pop(key)
        if self._taken_over is not None and self._is_taken_over(block, *self._taken_over):
            return
        # In a module's forward or in backward, a free belongs to the layer that runs, else to the block's layer.
        in_turn = self._modules or is_in_backward()
        if not in_turn and block in self._casts:
            self._at_once.add(len(self._events))
        self._events.append(Free(block, self._layer if in_turn else self._layers[block]))

    def _resize(self, storage: torch.UntypedStorage, size_bytes: int) -> Any:
        """Resize a storage, which frees its block and takes another, as FSDP does with what it gathers."""
        before, key = storage.nbytes(), storage_key(storage)
        done = _RESIZE(storage, size_bytes)
        wanted = self._hidden.device_type
        if storage.nbytes() == before or (wanted is not None and storage.device.type != wanted):
            return done
        self._taken_over = None
        if key in self._blocks:
            self._let_go(key)
        if size_bytes:
            place, layer = self._here()
            ((block, _),) = self._new_block(storage)
            self._categories[block] = GATHERED
            self._layers[block] = layer
            self._events.append(Alloc(block, size_bytes, place, _RESIZED, layer))
        return done

    def _is_taken_over(self, block: int, operand: int, key: int, at: int, end: int) -> bool:
        """Whether the freed block is the operand, freed right after the operator.

        If so, the result takes over the operand's block, and the result's ``Alloc`` is deleted.
        """
        self._taken_over = None
        if block != operand or len(self._events) != end or key not in self._blocks:
            return False
        del self._events[at]
        self._blocks[key] = (operand, self._blocks[key][1])
        return True

    # --- during the run ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Record the operators, modules, gradients and saved tensors of the block."""

        hooks: list[Any] = [
            parameter.register_post_accumulate_grad_hook(self._note_gradient)  # type: ignore[no-untyped-call]
            for parameter in self._parameters
            if parameter.requires_grad
        ]
        try:
            saving = torch.autograd.graph.saved_tensors_hooks(self._note_saved, lambda tensor: tensor)
            modules = hooked(self._enter_module, self._leave_module)
            replaced = [
                (torch.UntypedStorage, "resize_", lambda storage, size_bytes: self._resize(storage, size_bytes)),
                (torch.autograd.graph, "disable_saved_tensors_hooks", _paused(saving)),
            ]
            with collector_off(), modules, attributes_replaced(replaced), saving, self:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _end_span(self) -> None:
        self._span += 1
        self._layer = None

    def _enter_module(self, module: nn.Module, _: Any) -> None:
        name, layer = self._book.of(module)
        if self._modules and self._modules[-1][2] is not None:
            layer = self._modules[-1][2]  # a module shared by layers belongs to the layer that calls it
        self._modules.append((id(module), name, layer))

    def _leave_module(self, module: nn.Module, _args: Any, _result: Any) -> None:
        while self._modules and self._modules.pop()[0] != id(module):
            pass

    def _note_gradient(self, parameter: Tensor) -> None:
        block = self._block_of(parameter.grad) if parameter.grad is not None else None
        if block is not None:
            self._categories[block] = "gradients"
            self._owned.add(block)

    def _note_saved(self, tensor: Tensor) -> Tensor:
        block = self._block_of(tensor)
        if block is not None and block not in self._saved:
            place, _ = self._here()
            self._saved[block] = Saved(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), place)
        return tensor.detach()  # not the tensor: a result saved by its own node would keep the node alive

    def _here(self) -> tuple[Place, Layer | None]:
        """Return the current place and layer: in a module's forward, in a backward node, or outside of both."""
        node: Any = current_node()
        within = node is not None
        phase = self._spans[self._span] if self._span < len(self._spans) else BACKWARD if within else ""
        if self._modules:
            _, module, layer = self._modules[-1]
            return Place(phase, module, _line(), within), layer
        if node is not None:
            parameter = getattr(node, "variable", None)
            if parameter is not None and id(parameter) in self._of_parameter:
                module, layer = self._of_parameter[id(parameter)]
                return Place(phase, module, "", within), layer
            own = line_of(sys._getframe(1), until=backward_code())  # the line in an ``autograd.Function`` or a hook
            before = self._places.get(sequence_number(node))
            if before is not None:
                return Place(phase, before[0].module, own or before[0].line, within), before[1]
            return Place(phase, "", own, within), None
        return Place(phase, "", _line()), None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if are_of_many_ranks(types):
            return NotImplemented
        # No user's __torch_function__ is needed below, and a call of one at each access to a tensor would cost time.
        with without_torch_function():
            return self._dispatch(func, args, kwargs or {})

    def _dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if not is_operator(func):
            return func(*args, **kwargs)  # also FlexAttention's higher-order operator
        if _is_composite(func) and torch.is_inference_mode_enabled():
            with self:
                return func.decompose(*args, **kwargs)
        if self._watch is not None:
            self._watch.operator()
        kind = kind_of(func)
        if self._seen is not None and kind.name == _WAIT:
            return args[0]  # the tensor itself, of which its shape rule makes another one
        self._hidden.before()
        result = func(*args, **kwargs)
        if self._seen is not None and kind.name.startswith(FUNCTIONAL):
            self._seen.add_functional(kind.name.removeprefix(FUNCTIONAL), args, result)
        place, layer = self._here()
        if self._modules or not is_in_backward():
            self._places.setdefault(last_sequence_number(), (place, layer))
        if kind.is_view:
            return result
        first = next(tensors_in(args), None)
        is_of_host = first is not None and self._is_elsewhere(first)
        # A copy may be in the device's memory; fake ones are not.
        if is_of_host and self._hidden.device_type is not None:
            is_of_host = all(map(self._is_elsewhere, tensors_in(result)))
        if is_of_host:
            return result
        elsewhere = self._hidden.on_host(kind.name)
        there = [one for at, one in enumerate(result) if at not in elsewhere] if elsewhere else result
        made = list(self._new_blocks(tensors_in(there)))
        if made or kind.writes or kind.writes_by_name:  # else it is a view by another name, such as _unsafe_view
            self._record(kind, place, layer, args, kwargs, result, made)
        return result

    def _record(
        self,
        kind: Kind,
        place: Place,
        layer: Layer | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        made: list[tuple[int, int]],
    ) -> None:
        owners: dict[int, Layer | None] = {}
        operand = self._block_of(args[0]) if args and isinstance(args[0], Tensor) else None
        really = in_place(kind.name, self._made_in.get(operand) if operand is not None else None)
        elsewhere = layer is None and not self._modules
        if elsewhere:
            owners, layer = self._owners(args, result), self._owner_of(args)
        if kind.launches:
            self._layer = layer
            flops, moved = flops_of(kind, args, kwargs, result), bytes_of(kind, args, kwargs, result)
            launches = self._hidden.launches_of(really or kind.name, args, kwargs)
            dtype, is_causal = dtype_of(kind, args, result), is_causal_call(kind, args, kwargs)
            lists = self._tagged(self._hidden.lists_of(kind.name, args), args) if elsewhere and layer is None else None
            self._events.append(Op(kind.name, place, flops, moved, dtype, launches, layer, is_causal, lists))
        node = current_node() if made else None
        if kind.name == _CAST:
            self._casts.update(block for block, _ in made)
        for block, size_bytes in made:
            if node is not None:
                self._made_in[block] = sequence_number(node)
            self._layer = self._layers[block] = owners.get(block, layer)
            if elsewhere and self._layer is not None:
                self._owned.add(block)
            size_bytes = max(size_bytes, self._hidden.least_bytes(kind.name, args))
            self._events.append(Alloc(block, size_bytes, place, kind.name, self._layer))
        inside: list[int] = []
        for size_bytes in self._hidden.blocks_of(kind.name, args, kwargs) if kind.launches else ():
            self._next_block += 1  # also for 0 bytes: a call must have the same events at each size
            inside.append(self._next_block)
            self._layers[self._next_block] = layer
            self._events.append(Alloc(self._next_block, size_bytes, place, kind.name, layer))
        self._events.extend(Free(block, layer) for block in reversed(inside))
        if kind.name.startswith(_GATHERS):
            into = (self._block_of(one) for one in tensors_in(args[0]))
            self._categories.update((block, GATHERED) for block in into if block is not None)
        self._taken_over = None
        # A view keeps its base alive, so its memory has another owner, and autograd does not write to it in place.
        if really is not None and operand is not None and len(made) == 1 and not is_view(args[0]):
            at = len(self._events) - 2 * len(inside) - 1
            self._taken_over = operand, storage_key(result.untyped_storage()), at, len(self._events)

    # --- the layers of the parameters that an optimizer updates -------------------------------------------------

    def _owner_of(self, args: tuple[Any, ...]) -> Layer | None:
        """Return the layer of the parameter that an operator outside of modules works on; None if it takes lists."""
        if any(
            isinstance(argument, list | tuple) and any(isinstance(one, Tensor) for one in argument) for argument in args
        ):
            return None
        return next((self._layers.get(block) for block in self._owned_in(args)), None)

    def _owner_at(self, position: int, lists: Iterable[Sequence[Any]]) -> Layer | None:
        """Return the layer of the tensors at one position of an operator's lists; None if they belong to none."""
        column = [one[position] for one in lists if position < len(one) and isinstance(one[position], Tensor)]
        return next((self._layers.get(owned) for owned in self._owned_in(column)), None)

    def _owned_in(self, value: Any) -> Iterator[int]:
        for tensor in tensors_in(value):
            block = self._block_of(tensor)
            if block in self._owned:
                yield block

    def _owners(self, args: tuple[Any, ...], result: Any) -> dict[int, Layer | None]:
        """Return the layers of an operator's listed results by block: each that of the arguments at its position."""
        lists = [argument for argument in args if isinstance(argument, list | tuple)]
        if not isinstance(result, list | tuple) or not lists:
            return {}
        blocks = [self._block_of(tensor) if isinstance(tensor, Tensor) else None for tensor in result]
        return {block: self._owner_at(at, lists) for at, block in enumerate(blocks) if block is not None}

    def _tagged(self, lists: Lists | None, args: tuple[Any, ...]) -> Lists | None:
        """Return the lists with the layer of each part: the layer that owns a tensor at the part's position."""
        if lists is None:
            return None
        columns = [argument for argument in args if isinstance(argument, list | tuple)]
        owned = ((part, self._owner_at(position, columns)) for position, part in enumerate(lists.parts))
        parts = (part if layer is None else Part(part.numbers, *layer) for part, layer in owned)
        return replace(lists, parts=tuple(parts))

    # --- the trace ---------------------------------------------------------------------------------------------

    def trace(self) -> Trace:
        """Return the trace of everything recorded."""
        end = len(self._events) if self._ended_at is None else self._ended_at
        dropped = frozenset(event.block for event in self._events[end:] if isinstance(event, Free))
        events = tuple(_in_order(self._events[:end], self._at_once))
        blocks = [*self._held, *(event for event in events if isinstance(event, Alloc))]
        uses = {}
        for block in (one.block for one in blocks):
            kept, saved = self._categories.get(block), self._saved.get(block)
            # Held blocks and gradients exist anyway, whether autograd saves a tensor in them or not.
            uses[block] = Use(kept, None) if kept else Use("activations" if saved else "temporaries", saved)
        return Trace(
            held=tuple(self._held),
            events=events,
            uses=uses,
            layers=self._book.layers,
            result_blocks=dropped,
            parameters=sum(map(elements_here, self._parameters)),
        )


def _in_order(events: list[Event], at_once: set[int]) -> Iterator[Event]:
    """Yield the events, with frees in arbitrary order sorted by block number."""
    for together, group in groupby(enumerate(events), key=lambda one: one[0] in at_once):
        found = [event for _, event in group]
        yield from sorted(found, key=lambda event: event.block if isinstance(event, Free) else 0) if together else found


def _paused(saving: torch.autograd.graph.saved_tensors_hooks) -> Callable[[str], Any]:
    """Return a ``disable_saved_tensors_hooks``, which ``torch.func`` calls, that takes off the tracer's hooks first.

    A transform within another one finds them taken off.
    """
    disable: Any = torch.autograd.graph.disable_saved_tensors_hooks
    depth = 0

    @contextlib.contextmanager
    def paused(error_message: str) -> Iterator[None]:
        nonlocal depth
        if not depth:
            saving.__exit__()
        depth += 1
        try:
            with disable(error_message):
                yield
        finally:
            depth -= 1
            if not depth:
                saving.__enter__()

    return paused


_is_composite = cache(is_composite)


def _line() -> str:
    return line_of(sys._getframe(2))


def elements_here(parameter: Tensor) -> int:
    """Return the number of a parameter's elements in this rank: of a shard its own, of freed memory (FSDP2) none."""
    local = next(parts_of(parameter), parameter) if are_of_many_ranks([type(parameter)]) else parameter
    return 0 if local.layout is torch.strided and not local.untyped_storage().nbytes() else int(local.numel())
