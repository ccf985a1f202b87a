"""The cases that attention over a cache is held to, and its definition: attention of each sequence by itself.

Shapes: q, out (B, H, T, D); keys, values (B, C, K, D), or (num_pages, page_size, K, D) with pages (B, max_pages);
lengths (B,); scales of the shape of keys without D.

What no query sees holds NaN (int8: 127), and pages that nobody has are numbered -1 or 10**6.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from perflab.attention.plain import attention_magnitudes, plain_attention
from perflab.correctness import verify
from perflab.lab.attention import reference_attention

CAPACITY, PAGE_SIZE = 320, 32
"""Three splits of 128 keys; with pages, ten of them."""
LENGTHS = (0, 1, 300, 31, 33, 127, 129, 257)
"""None at all, the shortest, and those around the boundaries of pages (32) and splits (128, 256)."""
ADDED = (0, 1, 0, 1, -1, 1, -1, -1)
"""What the second run has more: 32, 128 and 256 themselves, so that a length that is remembered is wrong."""


@dataclass(frozen=True)
class Case:
    """One case; `str` is its name."""

    num_queries: int = 1
    heads: tuple[int, int] = (4, 2)
    dtype: torch.dtype = torch.float32
    head_dim: int = 24
    window: int | None = None
    softcap: float | None = None
    paged: bool = False
    int8: bool = False
    long_lengths: bool = False
    sequences: tuple[int, ...] = LENGTHS

    def __str__(self) -> str:
        words = (
            f"t{self.num_queries}", "h{}:{}".format(*self.heads), str(self.dtype).removeprefix("torch."),
            f"d{self.head_dim}", f"w{self.window}" if self.window else "", "capped" if self.softcap else "",
            "paged" if self.paged else "", "int8" if self.int8 else "",
        )  # fmt: skip
        return "-".join(filter(None, words))

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments of `decode_attention` that are no tensors."""
        return {"window": self.window, "softcap": self.softcap}

    def inputs(self, seed: int, device: torch.device) -> dict[str, Tensor]:
        """Tensors by the names of `decode_attention`'s arguments, other ones for each seed."""
        drawn = torch.Generator().manual_seed(seed)
        added = ADDED if self.sequences is LENGTHS else tuple(-min(1, length) for length in self.sequences)
        lengths = torch.tensor(self.sequences) + seed % 2 * torch.tensor(added)
        batch, (heads, key_heads) = len(lengths), self.heads
        q = torch.randn(batch, heads, self.num_queries, self.head_dim, generator=drawn).to(self.dtype)
        size = (batch, CAPACITY, key_heads, self.head_dim)
        tensors = {}
        for name in ("key", "value"):
            if self.int8:
                tensors[f"{name}s"] = torch.randint(-127, 128, size, generator=drawn, dtype=torch.int8)
                tensors[f"{name}_scales"] = torch.rand(size[:3], generator=drawn) * 0.02 + 1e-3
            else:
                tensors[f"{name}s"] = torch.randn(size, generator=drawn).to(self.dtype)
        unseen = torch.arange(CAPACITY) >= lengths[:, None]
        if self.window is not None:
            unseen |= torch.arange(CAPACITY) <= lengths[:, None] - self.num_queries - self.window
        for x in tensors.values():
            x[unseen] = 127 if x.dtype == torch.int8 else torch.nan
        if self.paged:
            tensors = self._paged(tensors, unseen, drawn)
        dtype = torch.int64 if self.long_lengths else torch.int32
        return {name: x.to(device) for name, x in {"q": q, **tensors, "lengths": lengths.to(dtype)}.items()}

    def _paged(self, tensors: dict[str, Tensor], unseen: Tensor, drawn: torch.Generator) -> dict[str, Tensor]:
        batch, num_pages = len(self.sequences), CAPACITY // PAGE_SIZE
        order = torch.randperm(batch * num_pages, generator=drawn)
        pages = order.view(batch, num_pages).to(torch.int32)
        pools = {}
        for name, x in tensors.items():
            pools[name] = torch.empty_like(x).view(batch * num_pages, PAGE_SIZE, *x.shape[2:])
            pools[name][order] = x.view(batch * num_pages, PAGE_SIZE, *x.shape[2:])
        unused = unseen.view(batch, num_pages, PAGE_SIZE).all(dim=2)
        pages[unused] = torch.where(torch.arange(int(unused.sum())) % 2 == 0, -1, 10**6).to(torch.int32)
        return {**pools, "pages": pages}


CASES = (
    *(Case(num_queries, heads) for num_queries in (1, 2, 5) for heads in ((2, 2), (4, 2), (6, 1))),
    Case(5, window=40, paged=True),
    Case(2, (6, 1), window=129, softcap=2.0),
    Case(1, window=1),
    Case(1, (2, 2), torch.bfloat16, 16, paged=True),
    Case(2, (4, 2), torch.float16, 64, long_lengths=True),
    Case(2, int8=True),
    Case(5, (6, 1), torch.bfloat16, 16, window=40, paged=True, int8=True),
    Case(1, (4, 1), torch.float16, int8=True, paged=True),
)
"""For what costs little: PyTorch."""
SHARP = (
    Case(1, (4, 2), sequences=(129, 257)),
    Case(5, (6, 1), torch.bfloat16, 16, window=40, softcap=2.0, paged=True, int8=True, sequences=(3, 133, 300)),
    Case(2, (2, 1), torch.float16, paged=True, long_lengths=True, sequences=(0, 33, 128)),
)
"""For Triton's interpreter, where each costs a second."""


def in_each_sequence(function: Callable[..., Any]) -> Callable[..., Any]:
    """An attention of one sequence as one over a cache: (out, logsumexp) of all sequences.

    function  function(q, k, v, **settings), q (1, H, T, D), k, v (1, K, N, D), as `reference_attention` is
    """

    def run(
        q: Tensor, lengths: Tensor, window: int | None = None, softcap: float | None = None, **tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        settings: dict[str, Any] = {"is_causal": True, "causal_alignment": "bottom-right", "softcap": softcap}
        if window is not None:
            settings["window_size"] = (window - 1, 0)
        outs, ends = torch.zeros_like(q), torch.full(q.shape[:-1], -torch.inf, dtype=q.dtype, device=q.device)
        for sequence, length in enumerate(lengths.tolist()):
            if length:
                k, v = of_one(sequence, length, q.dtype, **tensors)
                first = 0 if window is None else max(0, length - q.shape[2] - window + 1)
                pair = function(q[sequence, None], k[:, :, first:], v[:, :, first:], **settings)
                outs[sequence], ends[sequence] = (x[0] for x in pair)
        return outs, ends

    return run


def of_one(sequence: int, length: int, dtype: torch.dtype, **tensors: Tensor) -> Iterator[Tensor]:
    """Keys and values of one sequence, (1, K, length, D) each, read from where they lie."""
    for name in ("key", "value"):
        x, scales, pages = tensors[f"{name}s"], tensors.get(f"{name}_scales"), tensors.get("pages")
        found = x.to(dtype) if scales is None else (x.to(scales.dtype) * scales[..., None]).to(dtype)
        if pages is None:
            yield found[sequence, None, :length].transpose(1, 2)
        else:
            page_of = [int(pages[sequence, position // x.shape[1]]) for position in range(length)]
            rows = [found[min(max(page, 0), len(x) - 1), at % x.shape[1]] for at, page in enumerate(page_of)]
            yield torch.stack(rows)[None].transpose(1, 2)


def magnitudes(*inputs: Tensor, names: tuple[str, ...], upstream: Any, **settings: Any) -> dict[str, Tensor]:
    """`attention_magnitudes` of the output, over the sequences."""

    def one(q: Tensor, k: Tensor, v: Tensor, **rules: Any) -> tuple[Tensor, Tensor]:
        found = attention_magnitudes(q, k, v, upstream={}, **rules)
        return found["out"], found["logsumexp"]

    return {"out": in_each_sequence(one)(**dict(zip(names, inputs, strict=True)), **settings)[0]}


def hold(case: Case, candidate: Callable[..., Tensor], device: torch.device) -> None:
    """AssertionError, with what is wrong, unless the candidate is right in this case; called as `decode_attention`."""
    names = tuple(case.inputs(0, device))

    def named(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *inputs, **settings: function(**dict(zip(names, inputs, strict=True)), **settings)

    verify(
        named(candidate),
        lambda seed: case.inputs(seed, device),
        reference=named(lambda **given: in_each_sequence(reference_attention)(**given)[0]),
        plain=named(lambda **given: in_each_sequence(plain_attention)(**given)[0]),
        magnitudes=lambda *inputs, **given: magnitudes(*inputs, names=names, **given),
        settings=case.settings,
    )
