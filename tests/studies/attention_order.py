"""Orders of a causal grid: how long a launch takes by its loops' cycles, and what its running programs walk over.

    python -m tests.studies.attention_order

Programs of a causal grid differ in length, and start in the order of their numbers as others end. Three orders: heads
in turn, each with its longest program first; longest first over all heads; and sections of heads as the kernels have
them (`triton_pieces.place`), longest first in each. Beside them persistent programs, each of which takes every n-th
tile: over all heads, as TMA's kernel does, and in sections.

A program takes the cycles of its loops (`perflab kernels --loops`; its share, where several blocks are on a
multiprocessor) and 2,000 for its rest. A multiple of 1 is the work spread evenly, or the longest program by itself.
Bytes are those that running programs walk over, at most: of each head as far as its longest running program goes.
No model of the L2 cache and of memory: an A100 has 40 MiB of L2, an H100 50. Nothing is measured here.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from perflab.compiled.compiler.compile import compile_example
from perflab.compiled.machine.pipes import PIPES
from perflab.lab.attention.examples import launch_of
from perflab.lab.attention.scoring import Scoring
from perflab.lab.attention.triton_launches import section_of
from perflab.lab.attention.triton_tiles import choose_tiles
from perflab.lab.launch import SHARED_BYTES
from tests.perf.kernels import example_of

KERNELS = ((80, "forward", 64), (90, "forward", 64), (90, "forward", 128), (100, "forward", 128), (90, "dk_dv", 128))
SIZES = ((64, 4096), (16, 4096), (33, 4096), (64, 1024), (8, 16_384))
"""Heads in all and tokens."""
REST_CYCLES = 2000
MIB = 2**20


@dataclass(frozen=True)
class Program:
    """A program of one tile: its cycles, and the bytes of its head that it walks over."""

    cycles: float
    walked_bytes: int


def programs_of(arch: int, kernel: str, head_dim: int, tokens: int) -> tuple[list[Program], int]:
    """Return the programs of a head, the longest first, and how many run at once."""
    tiles = choose_tiles(kernel, head_dim, torch.bfloat16, SHARED_BYTES[arch])
    launch = launch_of(kernel, head_dim, torch.bfloat16, "causal", tiles)
    found = compile_example("lab", example_of("lab", launch), arch).resources
    assert found is not None, "the lab's kernels compile"
    blocks = found.blocks_per_sm
    # Tiles that the diagonal cuts have masks, which take no fewer cycles.
    whole, *_, cut = sorted(loop.least_cycles for loop in found.loops if loop.flops)
    own, other = (tiles.block_k, tiles.block_q) if kernel == "dk_dv" else (tiles.block_q, tiles.block_k)
    programs = []
    for start in range(tokens - own, -1, -own):
        iterations = start // other * whole + max(1, own // other) * cut
        programs.append(Program(iterations * blocks + REST_CYCLES, 2 * 2 * head_dim * (start + own)))
    return programs, PIPES[arch].multiprocessors * blocks


def in_sections(num_tiles: int, num_heads: int, section: int) -> Iterator[tuple[int, int]]:
    """Yield tile and head of each program, in the order of their numbers; sections are whole."""
    for first in range(0, num_heads, section):
        for tile in range(num_tiles):
            yield from ((tile, head) for head in range(first, first + section))


def schedule(programs: Sequence[Program], order: Sequence[tuple[int, int]], at_once: int) -> tuple[float, int]:
    """Return the cycles until the last of the programs (tile, head) ends, each on the first place that is free, and
    the most bytes that running ones walk over."""
    running: list[tuple[float, int, int]] = []
    walked = defaultdict[int, list[int]](list)
    end, now_bytes, most_bytes = 0.0, 0, 0
    for tile, head in order:
        began = 0.0
        if len(running) == at_once:
            began, ended_head, ended_tile = heapq.heappop(running)
            now_bytes -= max(walked[ended_head])
            walked[ended_head].remove(programs[ended_tile].walked_bytes)
            now_bytes += max(walked[ended_head], default=0)
        heapq.heappush(running, (began + programs[tile].cycles, head, tile))
        now_bytes -= max(walked[head], default=0)
        walked[head].append(programs[tile].walked_bytes)
        now_bytes += max(walked[head])
        most_bytes, end = max(most_bytes, now_bytes), max(end, began + programs[tile].cycles)
    return end, most_bytes


def ideal_cycles(programs: Sequence[Program], num_heads: int, at_once: int) -> float:
    """Return the cycles of the work spread evenly, or of the longest program."""
    return max(num_heads * sum(one.cycles for one in programs) / at_once, max(one.cycles for one in programs))


def lines() -> Iterator[str]:
    """Yield the table."""
    columns = ("kernel", "heads x tokens", "heads in turn", "over all heads", "sections", "heads in one")
    yield f"| {' | '.join(columns)} | persistent: over all, in sections |"
    yield f"|{'---|' * 7}"
    for arch, kernel, head_dim in KERNELS:
        for num_heads, tokens in SIZES:
            programs, at_once = programs_of(arch, kernel, head_dim, tokens)
            x = torch.empty(1, num_heads, tokens, head_dim, dtype=torch.bfloat16, device="meta")
            section = section_of(x, x, x, Scoring(1.0, None, None, 0), (x, x))
            ideal = ideal_cycles(programs, num_heads, at_once)
            cells = []
            for heads in (1, num_heads, section):
                order = list(in_sections(len(programs), num_heads, heads))
                cycles, most_bytes = schedule(programs, order, at_once)
                cells.append(f"{cycles / ideal:.2f}, {most_bytes / MIB:.0f} MiB")
            fixed = []
            for heads in (num_heads, section):
                taken = [programs[tile].cycles for tile, _ in in_sections(len(programs), num_heads, heads)]
                fixed.append(f"{max(sum(taken[number::at_once]) for number in range(at_once)) / ideal:.2f}")
            cells += [str(section), ", ".join(fixed)]
            yield f"| sm_{arch} {kernel} {head_dim} | {num_heads} x {tokens:,} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    for line in lines():
        print(line, flush=True)


if __name__ == "__main__":
    main()
