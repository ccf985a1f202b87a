"""The parts of a pass's peak memory: the pass itself, run on fake tensors, and what it allocates added up.

A fake tensor has a shape, a dtype and a storage of the right size, and no memory. The pass runs as it would on a CPU,
and every storage is counted from where an operator returns it to where nothing holds it any more. So a mixer, a
feed-forward or a variant of attention needs no equation here.

Blocks are alike, so what is there at one stage (the last block's forward, the loss, the last block's backward, the
first one's, the end, the optimizer) grows by the same bytes with each further block. Two and three blocks are traced,
and deeper models follow:

    bytes of a stage (L)  =  bytes (2) + (L - 2) (bytes (3) - bytes (2)),       peak (L) = the largest stage of L

Stages of blocks between are never the peak: from the last block to the first activations go and gradients come, both
linearly. A trace takes some tenths of a second; each is made once, and then read from the disk (`remembered.py`).

An estimate: allocator rounding, fragmentation, the workspaces of libraries, what an operator allocates for itself, and
the CUDA context are left out, and `torch.compile` keeps less. `cost.py` says how close it comes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from perflab.lab.attention import IMPLEMENTATIONS, PROVEN
from perflab.lab.models.config import ModelConfig
from perflab.lab.models.remembered import remembered
from perflab.lab.models.transformer import TransformerLM

Mode = Literal["inference", "forward", "forward_backward", "train_step"]
Optimizer = Literal["fused", "foreach", "loop"]
ADAMW: Mapping[str, dict[str, bool]] = MappingProxyType(
    {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False, "fused": False}}
)
TRACED_AS_THEY_ARE = ("sdpa", "sdpa-math", "naive", "tiled", "reference")
"""Variants of attention that run on fake tensors of a CPU. The others are FlashAttention, and need what sdpa does."""
_FEW, _MORE = 2, 3


@dataclass(frozen=True, kw_only=True)
class MemoryParts:
    """The content of memory at one instant, by kind, in bytes.

    parameters       the weights
    buffers          the rotary tables, if there are any, and other tensors that a model holds
    gradients        of the weights, as far as backward has come
    optimizer_state  AdamW's two moments of every weight
    weight_copies    weights cast by autocast, as far as they are still needed
    activations      what is still there of the forward when that has ended, its result left out
    temporaries      what the operation at hand reads and writes besides
    """

    parameters: int = 0
    buffers: int = 0
    gradients: int = 0
    optimizer_state: int = 0
    weight_copies: int = 0
    activations: int = 0
    temporaries: int = 0

    @property
    def total(self) -> int:
        """The sum of all kinds."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One traced pass; arguments are those of `model_cost`, except that `batch_size` is that of a micro-batch.

    accumulates  gradients of a micro-batch before are there already
    """

    batch_size: int
    seq_len: int
    mode: Mode
    weight_dtype: torch.dtype
    autocast_dtype: torch.dtype | None
    checkpointing: str = "none"
    accumulates: bool = False
    optimizer: Optimizer = "fused"


FORWARD = ("beginning", "forward of the others", "forward of the last", "ending")
BACKWARD = (
    "loss",
    "backward of the loss",
    "backward of the last",
    "backward of the others",
    "backward of the first",
    "end",
)
OPTIMIZER = ("optimizer",)
STAGES_OF: Mapping[Mode, tuple[str, ...]] = MappingProxyType(
    {
        "inference": FORWARD,
        "forward": FORWARD,
        "forward_backward": (*FORWARD, *BACKWARD),
        "train_step": (*FORWARD, *BACKWARD, *OPTIMIZER),
    }
)
"""Stages of a pass, in order. One trace of a training step has those of three modes."""


@lru_cache(maxsize=1024)
def peak_memory(config: ModelConfig, one: Pass) -> MemoryParts:
    """The largest instant of one pass. ValueError for attention that is for generating alone."""
    config, mode = _traceable(config), one.mode
    if mode != "inference":  # gradients from before are nothing to a forward by itself
        one = replace(one, mode="train_step", accumulates=one.accumulates and mode != "forward")
    largest = max(
        (parts for stage, parts in stages_of(config, one).items() if stage in STAGES_OF[mode]),
        key=lambda parts: parts.total,
    )
    return largest if mode == "train_step" else replace(largest, optimizer_state=0)


def stages_of(config: ModelConfig, one: Pass) -> dict[str, MemoryParts]:
    """The largest instant of each stage, from the disk if it has been traced before."""
    layers = config.num_layers
    traced = [
        {stage: MemoryParts(**parts) for stage, parts in remembered(_trace, replace(config, num_layers=n), one).items()}
        for n in ((layers,) if layers <= _MORE else (_FEW, _MORE))
    ]
    if len(traced) == 1:
        return traced[0]
    few, more = traced
    return {stage: _grown(few[stage], more[stage], layers) for stage in few}


def _traceable(config: ModelConfig) -> ModelConfig:
    """The same, computed by what runs on fake tensors and needs as much."""
    if not IMPLEMENTATIONS[config.attention].trains:
        able = ", ".join(name for name, claims in PROVEN.items() if claims.trains)
        raise ValueError(
            f"attention={config.attention!r} is for generating, and a step of training cannot be traced with it; "
            f"give attention= one of {able}"
        )
    if config.attention not in TRACED_AS_THEY_ARE:
        config = replace(config, attention="sdpa", window=None)
    if config.experts.expert_product == "loop" and config.feed_forward == "moe":  # its sizes depend on numbers
        config = replace(config, experts=replace(config.experts, expert_product="grouped"))
    return config


def _grown(few: MemoryParts, more: MemoryParts, layers: int) -> MemoryParts:
    by_layer = {f.name: getattr(more, f.name) - getattr(few, f.name) for f in fields(few)}
    return MemoryParts(**{name: getattr(few, name) + (layers - _FEW) * grown for name, grown in by_layer.items()})


def _trace(config: ModelConfig, one: Pass) -> dict[str, dict[str, int]]:
    """The largest instant of each stage, by the fields of `MemoryParts`."""
    from perflab.lab.train.loss import cross_entropy_loss  # which needs the model

    with FakeTensorMode():
        model = _built(config, one.weight_dtype).train(one.mode != "inference")
        model.checkpointing = one.checkpointing
        tokens = torch.zeros(one.batch_size, one.seq_len, dtype=torch.int64)
        parameters, ledger = list(model.parameters()), _Ledger()
        ledger.hold("parameters", parameters)
        ledger.hold("buffers", model.buffers())
        if one.mode == "inference":
            with ledger, _staged(model, ledger), torch.no_grad(), _autocast(one):
                model(tokens)
            return {stage: asdict(parts) for stage, parts in ledger.stages().items()}

        adamw = torch.optim.AdamW(parameters, **ADAMW[one.optimizer])  # type: ignore[arg-type]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        adamw.step()  # makes the optimizer's state
        ledger.hold(
            "optimizer_state", (moment for of in adamw.state.values() for moment in of.values() if moment.dim())
        )
        if one.accumulates:
            ledger.hold("gradients", (parameter.grad for parameter in parameters if parameter.grad is not None))
        else:
            adamw.zero_grad()
        with ledger, _staged(model, ledger):
            with _autocast(one):
                logits = model(tokens)
            ledger.end_forward(logits)
            ledger.stage = "loss"
            loss = cross_entropy_loss(logits, tokens)
            del logits
            ledger.end_forward(loss)
            ledger.stage, ledger.is_backward = "backward of the loss", True
            loss.backward()  # type: ignore[no-untyped-call]
            ledger.are("gradients", (parameter.grad for parameter in parameters if parameter.grad is not None))
            ledger.stage = "optimizer"
            adamw.step()
        return {stage: asdict(parts) for stage, parts in ledger.stages().items()}


def _autocast(one: Pass) -> AbstractContextManager[None]:
    return torch.autocast("cpu", dtype=one.autocast_dtype, enabled=one.autocast_dtype is not None)


def _built(config: ModelConfig, dtype: torch.dtype) -> TransformerLM:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # the parameters of a module of fake tensors cannot be cast afterwards
    try:
        return TransformerLM(config)
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _staged(model: TransformerLM, ledger: _Ledger) -> Iterator[None]:
    """Tell the ledger which block runs. In backward a block begins where the gradient of its output is there."""
    last = len(model.blocks) - 1

    def before(number: int) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            if not ledger.is_backward:  # what runs again there is of the backward
                ledger.stage = "forward of the last" if number == last else "forward of the others"

        return enter

    def after(number: int) -> Callable[..., None]:
        def back(gradient: Tensor) -> None:
            names = {last: "backward of the last", 0: "backward of the first"}
            ledger.stage = names.get(number, "backward of the others")

        def done(gradient: Tensor) -> None:
            ledger.stage = "end"

        def leave(module: nn.Module, inputs: Any, output: Tensor) -> None:
            if number == last and not ledger.is_backward:
                ledger.stage = "ending"
            if output.requires_grad and not ledger.is_backward:
                output.register_hook(back)  # type: ignore[no-untyped-call]
                if number == 0 and inputs[0].requires_grad:
                    inputs[0].register_hook(done)

        return leave

    handles = [block.register_forward_pre_hook(before(number)) for number, block in enumerate(model.blocks)]
    handles += [block.register_forward_hook(after(number)) for number, block in enumerate(model.blocks)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the storages that operators return, while they live; remembers the largest instant of each stage.

    stage        what runs now
    is_backward  whether the forward has ended
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stage, self.is_backward = "beginning", False
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._live: dict[int, int] = {}
        self._bytes = self._made = 0
        self._kind: dict[int, str] = {}
        self._kept: Set[int] = frozenset()
        self._ended: dict[str, MemoryParts] = {}
        self._largest: dict[str, tuple[int, dict[int, int]]] = {}

    def hold(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Count what is there from the beginning."""
        for tensor in tensors:
            self._kind[self._count(tensor)] = kind

    def are(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Say what tensors are; they were that from where they were made."""
        for tensor in tensors:
            self._kind[self._numbers[tensor.untyped_storage()]] = kind

    def end_forward(self, result: Tensor) -> None:
        """Count what is alive now, except for the result, as kept for backward since it was allocated."""
        own = self._numbers.get(result.untyped_storage())
        kept = {number for number in self._live if number != own}
        for stage, (_, live) in self._largest.items():
            self._ended.setdefault(stage, self._parts(live, kept))
        self._kept = kept

    def stages(self) -> dict[str, MemoryParts]:
        """The largest instant of each stage, by what it consisted of."""
        return {stage: self._parts(live, self._kept) for stage, (_, live) in self._largest.items()} | self._ended

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        is_copy = func is torch.ops.aten._to_copy.default and isinstance(args[0], nn.Parameter)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                number = self._count(leaf)
                if is_copy:
                    self._kind[number] = "weight_copies"
        largest = self._largest.get(self.stage)
        if largest is None or self._bytes >= largest[0]:  # of equals the last, where more of it is kept
            self._largest[self.stage] = self._bytes, dict(self._live)
        return result

    def _count(self, tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        number = self._numbers.get(storage)
        if number is None:
            number = self._made = self._made + 1
            self._numbers[storage] = number
            self._live[number] = storage.nbytes()
            self._bytes += storage.nbytes()
            weakref.finalize(storage, self._free, number)
        return number

    def _free(self, number: int) -> None:
        self._bytes -= self._live.pop(number)

    def _parts(self, live: Mapping[int, int], kept: Set[int]) -> MemoryParts:
        parts = dict.fromkeys((field.name for field in fields(MemoryParts)), 0)
        for number, size in live.items():
            kind = self._kind.get(number, "activations" if number in kept else "temporaries")
            parts[kind] += size
        return MemoryParts(**parts)
