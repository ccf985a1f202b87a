"""Attention kernels by their machine code: ours beside those in PyTorch's CUDA library, bounds beside measured speeds.

    python -m tests.studies.attention_code .venv-cuda/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so

The tables of docs/attention.md. FlashAttention-2's kernels are found by the parameters in their names, which say head
dimension, tile and warps; their shared memory is that of its ``kernel_traits.h``, and the kernel for a head dimension
that of its launch templates, for the memory of an A100 or H100. Nothing is measured here.

``PUBLISHED`` holds measured speeds with their sources: FlashAttention-2 (Dao 2023, arXiv 2307.08691, figures 5 and 6)
and 3 (Shah et al. 2024, arXiv 2407.08608, figure 5, its labels as in the chart of the authors' repository), and
xformers issue 712 for the memory-efficient kernel. ``pairs`` are all of one GPU and direction that differ by 10 % or
more: they follow from the table alone.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from perflab.compiled.compiler.architectures import ARCHITECTURES, occupancy
from perflab.compiled.compiler.compile import compile_example
from perflab.compiled.machine.library import kernels_in
from perflab.compiled.machine.pipes import PIPES
from perflab.compiled.machine.reading import read_loops
from perflab.internals import of_triton
from perflab.lab.attention import gluon_one_pass_kernel as in_gluon
from perflab.lab.attention.examples import launch_of, one_pass_tiles_of
from perflab.lab.attention.triton_tiles import choose_tiles
from perflab.results.compiled import LoopCounts
from tests.perf.kernels import example_of

BF16_BYTES = 2


@dataclass(frozen=True)
class Kernel:
    """An attention kernel of somebody else's, as far as its launch must be known."""

    library: str
    """``FlashAttention-2`` or ``memory-efficient``."""
    direction: str
    """``forward`` or ``backward``."""
    head_dim: int
    is_causal: bool
    pattern: str
    """A regular expression that its mangled name matches."""
    num_warps: int
    shared_bytes: int


def _flash_forward(head_dim: int, block_q: int, block_k: int, warps: int, *, is_causal: bool) -> Kernel:
    traits = f"Flash_fwd_kernel_traitsILi{head_dim}ELi{block_q}ELi{block_k}ELi{warps}ELb0ELb0E.*bfloat16"
    # Without dropout, window, ALiBi, soft cap or returned weights; lengths and head dimension are multiples of tiles.
    is_even = not is_causal and head_dim <= 128
    flags = f"EELb0ELb{int(is_causal)}ELb0ELb0ELb{int(is_even)}ELb1ELb0ELb0EEEv"
    shared_bytes = BF16_BYTES * head_dim * (block_q + 2 * block_k)
    pattern = f"flash_fwd_kernelI23{traits}.*{flags}"
    return Kernel("FlashAttention-2", "forward", head_dim, is_causal, pattern, warps, shared_bytes)


def _flash_backward(
    head_dim: int, block_q: int, block_k: int, atoms: str, *, in_registers: bool, single: bool, is_causal: bool
) -> Kernel:
    options = f"ELb{int(in_registers)}ELb{int(single)}E"
    traits = f"Flash_bwd_kernel_traitsILi{head_dim}ELi{block_q}ELi{block_k}ELi8E{atoms}{options}.*bfloat16"
    is_even = not is_causal and head_dim <= 128
    flags = f"EELb0ELb{int(is_causal)}ELb0ELb0ELb{int(is_even)}ELb1ELb0EEEv"
    queries = (2 if single else 3) * block_q * head_dim
    keys, scores = 2 * block_k * head_dim, block_q * block_k
    more = 2 * scores
    shared = queries + (max(keys, keys // 2 + more) if in_registers else keys + more)
    pattern = f"flash_bwd_dq_dk_dv_loop_seqk_parallel_kernelI23{traits}.*{flags}"
    return Kernel("FlashAttention-2", "backward", head_dim, is_causal, pattern, 8, BF16_BYTES * shared)


def _efficient(head_dim: int, block_q: int, block_k: int) -> Kernel:
    pattern = f"fmha_cutlassF_bf16_aligned_{block_q}x{block_k}_rf_sm80"
    shared_bytes = BF16_BYTES * (block_q * block_k + 4 * 32 * (block_q + block_k))  # scores; three stages of 32 and one
    warps = block_q * block_k // (32 * 32)
    return Kernel("memory-efficient", "forward", head_dim, False, pattern, warps, shared_bytes)


def kernels(arch: int) -> list[Kernel]:
    """Return the kernels that PyTorch runs on an A100 (80) or H100 (90) for these head dimensions."""
    found = []
    for is_causal in (False, True):
        found += [
            _flash_forward(64, 128, 128, 4, is_causal=is_causal),
            _flash_forward(96, 128, 64, 4, is_causal=is_causal),
            _flash_forward(128, 128, 64, 4, is_causal=is_causal),
            _flash_forward(256, *((128, 64, 8) if arch == 80 else (64, 64, 4)), is_causal=is_causal),
            _flash_backward(64, 128, 128, "Li4ELi4ELi4", in_registers=False, single=False, is_causal=is_causal),
            _flash_backward(96, 64, 128, "Li2ELi4ELi4", in_registers=True, single=False, is_causal=is_causal),
            _flash_backward(128, 64, 128, "Li2ELi4ELi2", in_registers=False, single=False, is_causal=is_causal),
            _flash_backward(256, 64, 64, "Li4ELi2ELi2", in_registers=False, single=arch == 80, is_causal=is_causal),
        ]
    return [*found, _efficient(64, 64, 64), _efficient(128, 64, 128)]


@dataclass(frozen=True)
class Read:
    """A kernel as it was read."""

    whose: str
    name: str
    registers: int
    spilled: int
    """Instructions of the loop that access local memory."""
    blocks: int
    loop: LoopCounts

    def row(self) -> str:
        """Return a line of the table."""
        loop = self.loop
        products = sum(count for kind, count in loop.issues.items() if kind.startswith("tensor_products"))
        kinds = ("exponentials", "float_arithmetic", "float_comparisons", "conversions", "integer_arithmetic", "moves")
        shared = sum(count for kind, count in loop.issues.items() if kind.startswith("shared_loads"))
        each = [loop.total, *(loop.issues.get(kind, 0) for kind in kinds), shared]
        cells = [self.name, self.whose, str(self.registers), str(self.spilled), str(self.blocks)]
        cells += [f"{count / max(1, products):.2f}" for count in each]
        cells += [f"{100 * loop.share_of_peak:.0f} %", loop.limit]
        return f"| {' | '.join(cells)} |"


@functools.cache
def theirs(library: Path, arch: int, kernel: Kernel) -> Read:
    """Read a kernel of the library."""
    tools = {tool: of_triton.disassembler_path(tool) for tool in ("nvdisasm", "cuobjdump")}
    found = min(kernels_in(library, arch, kernel.pattern, **tools), key=lambda one: len(one.function.instructions))
    blocks, _ = occupancy(
        ARCHITECTURES[arch],
        num_warps=kernel.num_warps,
        registers=found.registers,
        shared_bytes=found.shared_bytes + kernel.shared_bytes,
    )
    loops = read_loops(found.function, num_warps=kernel.num_warps, blocks=blocks)
    best = max(loops, key=lambda one: (one.flops > 0, one.flops / max(1.0, one.least_cycles)))
    name = _name(kernel.direction, kernel.head_dim, is_causal=kernel.is_causal)
    return Read(kernel.library, name, found.registers, best.issues.get("local_memory", 0), blocks, best)


def ours(arch: int, kernel: str, head_dim: int, *, is_causal: bool) -> Read | None:
    """Compile and read the lab's kernel in the tile that runs where nothing is tuned; None without one pass there."""
    if kernel == "one_pass":
        tiles = one_pass_tiles_of(head_dim, arch)
    elif kernel == "one_pass_gluon":
        tiles = in_gluon.TILES if (arch, head_dim) == (in_gluon.ARCHITECTURE, in_gluon.HEAD_DIM) else None
    else:
        tiles = choose_tiles(kernel, head_dim, torch.bfloat16, ARCHITECTURES[arch].shared_limit_bytes)
    if tiles is None:
        return None
    launch = launch_of(kernel, head_dim, torch.bfloat16, "causal" if is_causal else "full", tiles)
    here = compile_example("lab", example_of("lab", launch), arch).resources
    assert here is not None
    assert here.main_loop is not None
    direction = "forward" if kernel.startswith("forward") else f"backward ({kernel})"
    name = _name(direction, head_dim, is_causal=is_causal)
    loop = here.main_loop
    spilled = loop.issues.get("local_memory", 0)
    return Read("the lab's", name, here.registers, spilled, here.blocks_per_sm, loop)


def _name(direction: str, head_dim: int, *, is_causal: bool) -> str:
    return f"{direction} {head_dim}{' causal' if is_causal else ''}"


def side_by_side(library: Path, arch: int) -> Iterator[str]:
    """Yield the table of both: instructions for each product of the tensor cores, and the bound."""
    titles = "kernel|whose|regs|spills|blocks|all|exp|float|compare|convert|int|moves|shared|bound|by"
    yield f"| {' | '.join(titles.split('|'))} |"
    yield f"|{'---|' * len(titles.split('|'))}"
    for kernel in kernels(arch):
        yield theirs(library, arch, kernel).row()
    for head_dim, is_causal in itertools.product((64, 80, 128, 256), (False, True)):
        for name in ("forward", "dk_dv", "dq", "one_pass", "one_pass_gluon"):
            read = ours(arch, name, head_dim, is_causal=is_causal)
            if read is not None:
                yield read.row()


PUBLISHED: dict[int, dict[tuple[str, str, int, bool], float]] = {
    80: {
        ("FlashAttention-2", "forward", 64, False): 192,
        ("FlashAttention-2", "forward", 64, True): 185,
        ("FlashAttention-2", "forward", 128, False): 225,
        ("FlashAttention-2", "backward", 64, False): 170,
        ("FlashAttention-2", "backward", 64, True): 166,
        ("FlashAttention-2", "backward", 128, False): 196,
        ("FlashAttention-2", "backward", 128, True): 186,
        ("memory-efficient", "forward", 64, False): 87,
        ("memory-efficient", "forward", 128, False): 108,
    },
    90: {
        ("FlashAttention-2", "forward", 64, False): 324,
        ("FlashAttention-2", "forward", 64, True): 299,
        ("FlashAttention-2", "forward", 128, False): 370,
        ("FlashAttention-2", "forward", 128, True): 335,
        ("FlashAttention-2", "forward", 256, False): 326,
        ("FlashAttention-2", "forward", 256, True): 298,
    },
}
"""TFLOP/s by architecture, and (library, direction, head dimension, causal), at 16k tokens or the longest published."""
APART = 1.10


def pairs(arch: int) -> list[tuple[tuple[str, str, int, bool], tuple[str, str, int, bool]]]:
    """Return the pairs of one direction whose published speeds differ by 10 % or more, the faster first."""
    known = PUBLISHED[arch]
    every = [sorted(pair, key=lambda one: -known[one]) for pair in itertools.combinations(known, 2)]
    return [(one, two) for one, two in every if one[1] == two[1] and known[one] >= APART * known[two]]


def validated(library: Path) -> Iterator[str]:
    """Yield each published speed with its bound, then each pair with the order by bound."""
    right, ties, number = 0, 0, 0
    bounds: dict[tuple[int, tuple[str, str, int, bool]], float] = {}
    yield "| GPU | kernel | published | bound | published of bound |"
    yield "|---|---|---|---|---|"
    for arch, known in PUBLISHED.items():
        by_key = {(one.library, one.direction, one.head_dim, one.is_causal): one for one in kernels(arch)}
        for key, speed in known.items():
            read, pipes = theirs(library, arch, by_key[key]), PIPES[arch]
            bound = read.loop.flops / read.loop.least_cycles * pipes.multiprocessors * pipes.clock_hz / 1e12
            bounds[arch, key] = bound
            yield f"| {pipes.name} | {key[0]} {read.name} | {speed:.0f} | {bound:.0f} | {100 * speed / bound:.0f} % |"
    yield ""
    for arch in PUBLISHED:
        for fast, slow in pairs(arch):
            number += 1
            right += bounds[arch, fast] > 1.001 * bounds[arch, slow]
            ties += abs(bounds[arch, fast] / bounds[arch, slow] - 1) <= 0.001
    yield f"{number} pairs that differ by 10 % or more: {right} in the order of their bounds, {ties} ties"


def main() -> None:
    """Print the tables."""
    library = Path(sys.argv[1])
    for arch in (80, 90):
        print(f"\nsm_{arch}\n")
        for line in side_by_side(library, arch):
            print(line, flush=True)
    print()
    for line in validated(library):
        print(line, flush=True)


if __name__ == "__main__":
    main()
