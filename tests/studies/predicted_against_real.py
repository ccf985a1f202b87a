"""Predictions of CUDA held against PyTorch's real CUDA build: memory, launches, operator by operator.

    python -m nocuda run -- python -m tests.studies.predicted_against_real [--markdown]
    ... --operators --models=tiny --modes=train_step --precisions=bf16 --attention=sdpa

Real are the caching allocator, its statistics and the launches; kernels are counted and not run (``nocuda``). On a GPU
the same comparison is ``test_predicted_on_cuda.py``. Shapes: tokens (B, T).
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import torch

from nocuda.library import Library, library
from perflab.internals.of_torch import TorchDispatchMode
from perflab.measure.machine.devices import release_memory
from perflab.predicted.cuda.kernels import ON_CUDA
from perflab.predicted.gpus import Gpu, parse_gpu
from perflab.predicted.memory.account import account_of
from perflab.predicted.prediction import Work, predict
from perflab.predicted.trace.operators import is_operator, kind_of, tensors_in
from perflab.predicted.trace.trace import Op
from tests.correctness.predicted import BUILDS, on_a_gpu, setup_of, work

MODELS = ("tiny", "2.7B")
MODES = tuple(BUILDS)
PRECISIONS = ("fp32", "bf16")
ATTENTION = ("naive", "sdpa", "triton")
OPAQUE = ("aten::_scaled_dot_product_cudnn_attention_backward",)
"""cuDNN's: ``nocuda`` knows neither its kernels nor what its engine takes, beside what its frontend asks for."""
BATCH_SIZE = 4
CONTEXT_LENGTH = 512
CALLS = 4
"""Of a loop, before it is looked at: the first makes optimizer state and gradients, the second may widen the cache."""


class Case(NamedTuple):
    """One call of the lab's."""

    model: str
    mode: str
    precision: str
    attention: str

    def work(self, device: str = "cuda:0") -> Work:
        """The call, and what it works on, on whatever device is there."""
        model, mode, precision, attention = self
        training = {"precision": precision}
        setup = setup_of(model, BATCH_SIZE, CONTEXT_LENGTH, device=device, training=training, attention=attention)
        return work(mode, setup)

    def __str__(self) -> str:
        return " ".join(self)


class Figures(NamedTuple):
    """What one call in a loop's steady state comes to, and the process that runs it."""

    asked_bytes: int
    """``requested_bytes.all.peak``: the most that was alive, as it was asked for."""
    allocated_bytes: int
    """``max_memory_allocated``: with rounding, and with what the allocator does not cut off."""
    reserved_bytes: int
    """``max_memory_reserved``."""
    launches: int
    """Kernels, and copies on the device. cuDNN's are one a call here: how many it launches, no host side tells."""


@dataclass(frozen=True)
class Compared:
    """One case."""

    case: str
    predicted: Figures
    real: Figures

    def off(self, figure: str) -> float:
        """By how much of the real one the predicted is too high."""
        predicted, real = getattr(self.predicted, figure), getattr(self.real, figure)
        return (predicted - real) / real if real else float(predicted != real)


def compared(name: str, make: Callable[[], Work], gpu: Gpu | None = None, calls: int = CALLS) -> Compared:
    """A call predicted and really made.

    Args:
        name: what it is called.
        make: builds the call and what it works on, once on fake tensors and once on real ones.
        gpu: as what it is predicted; by default the one that ``nocuda`` says it is.
        calls: how often it is made before it is looked at.
    """
    return Compared(name, predicted_figures(make, gpu or parse_gpu("h100")), real_figures(make, calls))


def predicted_figures(make: Callable[[], Work], gpu: Gpu) -> Figures:
    """As the plugin predicts them, but for bytes as they are asked for, which it has no use for."""
    with on_a_gpu(divmod(gpu.architecture, 10)):
        now, found = predict(make(), gpu, ON_CUDA)
    asked = account_of(found.trace, rounded=lambda size_bytes: size_bytes).peak_bytes + now.workspace_bytes
    within = sum(op.launches - 1 for op in found.trace.events if isinstance(op, Op) and op.name in OPAQUE)
    return Figures(asked, now.allocated_bytes, now.reserved_bytes, now.launches - within)


def real_figures(make: Callable[[], Work], calls: int = CALLS) -> Figures:
    """From ``torch.cuda.memory_stats`` and ``nocuda``, of one more call after ``calls`` of them.

    Before all of them one is made of which nothing is kept: Triton's autotuner takes memory in the first call of a
    process.
    """
    torch.cuda.init()
    make().run(_nothing)
    torch._C._cuda_clearCublasWorkspaces()
    release_memory(torch.device("cuda"))
    before = torch.cuda.memory_stats()
    run = make().run
    for _ in range(calls):
        run(_nothing)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    counted = library()
    counted.reset()
    run(_nothing)
    torch.cuda.synchronize()
    launches, after = _launches(counted), torch.cuda.memory_stats()

    def since(name: str) -> int:
        return int(after[f"{name}.all.peak"] - before.get(f"{name}.all.current", 0))

    return Figures(since("requested_bytes"), since("allocated_bytes"), since("reserved_bytes"), launches)


# --- operator by operator ------------------------------------------------------------------------------------------


class Said(NamedTuple):
    """What one operator launches, and what it takes in passing beside its results."""

    launches: int
    hidden_bytes: int


class Difference(NamedTuple):
    """An operator of which ``cuda/kernels.py`` does not know what it does."""

    operator: str
    arguments: str
    predicted: Said
    real: Said


@dataclass(frozen=True)
class Operators:
    """Those of one call."""

    calls: int
    differences: Counter[Difference]
    kernels: dict[Difference, dict[str, int]] = field(default_factory=dict)
    """What the first one of each launched."""


def operators(run: Callable[[Callable[[], None]], Any]) -> Operators:
    """Each operator of a call in its steady state beside what is said of it."""
    run(_nothing)
    run(_nothing)
    with _Watched(library()) as watched:
        run(_nothing)
    return Operators(watched.calls, watched.differences, watched.kernels)


class _Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, counted: Library) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = 0
        self.differences: Counter[Difference] = Counter()
        self.kernels: dict[Difference, dict[str, int]] = {}
        self._counted = counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not is_operator(func):
            return func(*args, **kwargs)
        kind = kind_of(func)
        known = {tensor.untyped_storage().data_ptr() for tensor in tensors_in((args, kwargs))}
        torch.cuda.reset_peak_memory_stats()
        self._counted.reset()
        result = func(*args, **kwargs)
        made = any(tensor.untyped_storage().data_ptr() not in known for tensor in tensors_in(result))
        if kind.is_view or not (made or kind.writes or kind.writes_by_name):
            return result
        self.calls += 1
        hidden = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        real = Said(_launches(self._counted), hidden)
        if kind.launches and any(tensor.is_cuda for tensor in tensors_in((args, kwargs, result))):
            blocks = ON_CUDA.blocks_of(kind.name, args, kwargs)
            said = Said(ON_CUDA.launches_of(kind.name, args, kwargs), sum(blocks))
        else:
            said = Said(0, 0)
        if said.launches != real.launches or not _same_rounded(said.hidden_bytes, real.hidden_bytes):
            difference = Difference(str(func), _shown(args), said, real)
            if not self.differences[difference]:
                self.kernels[difference] = self._counted.counts().kernels
            self.differences[difference] += 1
        return result


def _same_rounded(asked: int, allocated: int) -> bool:
    """Whether a few blocks of so many bytes altogether may take so many of the allocator, remainders not cut off."""
    return asked <= allocated < asked + 4 * 512 or (asked > 2**20 and 0 <= allocated - asked <= 4 * 2**20)


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        strides = "" if value.is_contiguous() else f" strides {tuple(value.stride())}"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{strides}"
    if isinstance(value, list | tuple):
        shown = [_shown(one) for one in value[:4]]
        return f"({', '.join([*shown, *(['...'] if len(value) > len(shown) else [])])})"
    return repr(value)


def _launches(counted: Library) -> int:
    """Kernels and copies on the device: PyTorch copies what is contiguous without a kernel."""
    return counted.launches + counted.counts().copies["device to device"][0]


def _nothing() -> None:
    """Nobody wants to know when a span ends."""


# --- the command ---------------------------------------------------------------------------------------------------


def in_words(rows: Iterable[Compared]) -> Iterator[str]:
    """A line for each case, as it is done."""
    yield f"{'case':34}" + "".join(f" {title:>40} {'':>8}" for title in ("asked", "allocated", "reserved", "launches"))
    for row in rows:
        cells = [
            f" {predicted:19,} {real:20,} {_percent(row.off(name)):>8}"
            for name, predicted, real in zip(Figures._fields, row.predicted, row.real, strict=True)
        ]
        yield f"{row.case:34}" + "".join(cells)


def in_markdown(rows: Sequence[Compared]) -> Iterator[str]:
    """The table of docs/predicted-against-real.md."""
    yield "| case | asked for, B | | allocated, B | | reserved, MiB | | launches | |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        predicted = row.predicted
        cells = [
            f"{predicted.asked_bytes:,}",
            _markdown(row, "asked_bytes"),
            f"{predicted.allocated_bytes:,}",
            _markdown(row, "allocated_bytes"),
            f"{predicted.reserved_bytes / 2**20:,.0f}",
            _markdown(row, "reserved_bytes"),
            f"{predicted.launches:,}",
            _markdown(row, "launches"),
        ]
        yield f"| {row.case} | {' | '.join(cells)} |"


def summary(rows: Sequence[Compared]) -> Iterator[str]:
    """How many are equal, and the worst."""
    for name in Figures._fields:
        equal = sum(row.off(name) == 0 for row in rows)
        worst = max(rows, key=lambda row: abs(row.off(name)))
        said = f"{name.removesuffix('_bytes')}: {equal} of {len(rows)} equal"
        yield said if equal == len(rows) else f"{said}, worst {_percent(worst.off(name))} ({worst.case})"


def _markdown(row: Compared, name: str) -> str:
    return "=" if not row.off(name) else _percent(row.off(name))


def _percent(share: float) -> str:
    return "=" if not share else f"{share:+.4%}" if abs(share) < 0.0001 else f"{share:+.2%}"


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description="Predictions held against PyTorch's real CUDA build.")
    for name, choices in (("models", MODELS), ("modes", MODES), ("precisions", PRECISIONS), ("attention", ATTENTION)):
        parser.add_argument(f"--{name}", default=",".join(choices), metavar="NAME[,NAME...]")
    parser.add_argument("--markdown", action="store_true", help="the table of docs/predicted-against-real.md")
    parser.add_argument("--operators", action="store_true", help="operators of which launches or hidden bytes differ")
    parser.add_argument("--kernels", action="store_true", help="with --operators: what each launches")
    asked = parser.parse_args()
    cases = [
        Case(*one)
        for one in product(
            *(text.split(",") for text in (asked.models, asked.modes, asked.precisions, asked.attention))
        )
    ]
    if asked.operators:
        for case in cases:
            print_operators(str(case), operators(case.work().run), kernels=asked.kernels)
        return
    rows: list[Compared] = []

    def each() -> Iterator[Compared]:
        for case in cases:
            rows.append(compared(str(case), case.work))
            yield rows[-1]

    if asked.markdown:
        rows = [compared(str(case), case.work) for case in cases]
        print("\n".join([*in_markdown(rows), "", *(f"- {line}" for line in summary(rows))]))
    else:
        for line in in_words(each()):
            print(line, flush=True)
        print("\n".join(summary(rows)))


def print_operators(name: str, found: Operators, *, kernels: bool) -> None:
    """A line for each kind of difference; with ``kernels`` what the first of it launched."""
    print(f"{name}: {found.differences.total()} of {found.calls} operators differ", flush=True)
    for difference, count in found.differences.items():
        said, real = difference.predicted, difference.real
        print(f"  {count:4} x {difference.operator}{difference.arguments[:160]}")
        print(
            f"         launches {said.launches}, really {real.launches}; hidden {said.hidden_bytes:,} B, really "
            f"{real.hidden_bytes:,} B"
        )
        for kernel, times in found.kernels[difference].items() if kernels else ():
            print(f"           {times} x {kernel[:150]}")


if __name__ == "__main__":
    main()
