"""docs/memory-study.md: where the memory of the lab's models goes, from snapshots of all three engines.

    python -m nocuda run -- python -m tests.studies.memory_study > docs/memory-study.md

It runs in the environment with PyTorch's CUDA build (``make cuda``), takes ten minutes, most of them for ``small`` on a
CPU, and keeps the snapshots in .perflab/memory-study/. What lies there is not made again.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from perflab.lab.models import size_config
from perflab.snapshots.analysis import alike, alive_at, levels, lines_in, module_of, peak_moment
from perflab.snapshots.difference import compare
from perflab.snapshots.model import Snapshot
from perflab.snapshots.reading import choose, read_snapshots
from perflab.snapshots.report import Report, Table, shown
from perflab.tables.escaping import escape
from perflab.units import format_bytes

from .memory_figures import (
    PARTS,
    WIDTH,
    known_parts,
    of_the_stream,
    peak_bytes,
    peak_cells,
    residual_bytes,
    stage_of,
    timeline,
)
from .memory_timelines import BATCH_SIZE, CONTEXT_LENGTHS, CPU, CUDA, GPU, MODELS, MODES, PREDICTED, Case, cases, make

COMMAND = "python -m nocuda run -- python -m tests.studies.memory_study > docs/memory-study.md"
FOLDER = Path(".perflab/memory-study")
LARGEST = "2.7B"
LISTED = 8
"""Rows of a table of the largest allocations."""
Snapshots = Mapping[Case, Snapshot]


def page(found: Snapshots) -> Iterator[str]:
    """The page, line by line."""
    yield "# Where a transformer's memory goes"
    yield ""
    yield _prose(
        "One call of the lab's models in a loop's steady state: a forward pass alone (logits, with the graph behind",
        f"them) and a full training step with AdamW, batch {BATCH_SIZE}, vocabulary 10,000, fp32 and bf16 (autocast).",
        f"PyTorch {torch.__version__.partition('+')[0]}. Made by this command; `perflab memory` opens the snapshots",
        f"that it leaves in `{FOLDER}/`:",
    )
    yield from ("", "```", COMMAND, "```", "")
    yield _prose(
        f"*Predicted*: traced on fake tensors for an {GPU.upper()}. *Recorded*: by PyTorch's own recorder, in its CUDA",
        "build over [a driver that computes nothing](../nocuda/README.md). *Measured*: on this CPU.",
    )
    for section in (_findings, _peaks, _timelines, _residual, _largest, _precision):
        yield ""
        yield from section(found)


def _findings(found: Snapshots) -> Iterator[str]:
    yield "## What it comes to, predicted"
    yield ""
    for model in MODELS[PREDICTED]:
        lengths: dict[str, list[str]] = {}
        for length in CONTEXT_LENGTHS:
            lengths.setdefault(stage_of(found[Case(PREDICTED, model, "train_step", length, "fp32")]), []).append(
                str(length)
            )
        told = ", ".join(f"{stage} ({', '.join(at)} tokens)" for stage, at in lengths.items())
        yield f"- A training step of `{model}` in fp32 peaks at: {told}."
    for mode, name in zip(MODES, ("forward pass", "training step"), strict=True):
        off = []
        for case in cases(PREDICTED):
            if (case.mode, case.precision) == (mode, "bf16"):
                off.append(peak_bytes(found[case]) / peak_bytes(found[case._replace(precision="fp32")]) - 1)
        span = f"{min(off):+.0%} to {max(off):+.0%}"
        higher = sum(one > 0 for one in off)
        yield f"- bf16 changes the peak of a {name} by {span}; it is higher in {higher} of {len(off)}."
    shortest, longest = min(CONTEXT_LENGTHS), max(CONTEXT_LENGTHS)
    for precision in ("fp32", "bf16"):
        less, more = (
            known_parts(found[Case(PREDICTED, LARGEST, "forward", length, precision)])["activations"]
            for length in (shortest, longest)
        )
        yield (
            f"- From {shortest} to {longest} tokens the activations of `{LARGEST}` in {precision} grow "
            f"×{more / less:.1f}, from {format_bytes(less)} to {format_bytes(more)}."
        )


def _peaks(found: Snapshots) -> Iterator[str]:
    yield "## Peaks"
    yield ""
    yield _prose(
        "Predicted for CUDA, and what is alive at the peak. The last column is the recorded peak: `=` is equal to the",
        "byte.",
    )
    yield ""
    yield from _peak_table(found, PREDICTED)
    yield ""
    predicted = list(cases(PREDICTED))
    equal = sum(peak_bytes(found[one]) == peak_bytes(found[one._replace(engine=CUDA)]) for one in predicted)
    same = sum(known_parts(found[one]) == known_parts(found[one._replace(engine=CUDA)]) for one in predicted)
    yield _prose(
        f"Of {len(predicted)} peaks, {equal} are equal to the byte, and {same} are made of the same bytes in each of",
        "the five categories. The rest is buffers, inputs and cuBLAS's workspace, which a prediction names and a",
        "recording calls `unknown`.",
    )
    yield ""
    yield "Measured on a CPU, which rounds nothing and has no workspace:"
    yield ""
    yield from _peak_table(found, CPU)


def _peak_table(found: Snapshots, engine: str) -> Iterator[str]:
    last = ["recorded"] if engine == PREDICTED else []
    titles = ["case", "peak, B", "in stage", *PARTS, "rest", *last]
    yield from _head(titles, numbers=(1, *range(3, len(titles))))
    for case in cases(engine):
        cells = peak_cells(case, found[case])
        if last:
            off = peak_bytes(found[case._replace(engine=CUDA)]) - peak_bytes(found[case])
            cells.append(f"{off:+,} B" if off else "=")
        yield _row(cells)


def _timelines(found: Snapshots) -> Iterator[str]:
    yield "## Timelines"
    yield ""
    yield _prose(
        "Live bytes over allocations and frees, from zero to the case's peak; `│` is where the backward and where the",
        f"optimizer begins. Each letter is the highest moment of one of {WIDTH} parts of the call; `perflab memory",
        "FILE --format=html` draws them stacked by category.",
    )
    for title, engine, model in (
        (f"Predicted, {LARGEST}", PREDICTED, LARGEST),
        ("Measured on a CPU, small", CPU, "small"),
    ):
        yield from ("", f"{title}:", "", "```text")
        listed = [one for one in cases(engine) if one.model == model]
        room = max(len(one.title) for one in listed)
        for case in listed:
            yield f"{case.title:<{room}} {timeline(found[case])} {format_bytes(peak_bytes(found[case]))}"
        yield "```"


def _residual(found: Snapshots) -> Iterator[str]:
    yield "## An activation of the residual stream"
    yield ""
    yield _prose(
        "By the formula it has batch · context · d_model numbers of 4 bytes; autocast leaves it in float32. The last",
        "columns count the blocks of exactly that size that the transformer blocks' own two sums (`x + ...`) make in a",
        "forward pass in fp32 and that are alive at its end.",
    )
    yield ""
    engines = (PREDICTED, CUDA, CPU)
    titles = ("predicted", "recorded", "measured")
    yield from _head(["model", "layers", "context", "formula", "bytes", *titles], numbers=range(1, 8))
    for model in dict.fromkeys(one.model for one in cases(PREDICTED)):
        for length in CONTEXT_LENGTHS:
            config = size_config(model)
            size = residual_bytes(model, length)
            seen = []
            for engine in engines:
                snapshot = found.get(Case(engine, model, MODES[0], length, "fp32"))
                seen.append(str(len(of_the_stream(snapshot, size))) if snapshot else "")
            formula = f"{BATCH_SIZE} · {length} · {config.d_model} · 4"
            yield _row([model, str(config.num_layers), str(length), formula, f"{size:,}", *seen])


def _largest(found: Snapshots) -> Iterator[str]:
    longest = max(CONTEXT_LENGTHS)
    yield f"## The largest allocations of {LARGEST} at {longest} tokens"
    yield ""
    yield _prose(
        "What the call itself made of what is alive at the peak: blocks of one size, category, module and line",
        "together, all layers as one. What was held before are parameters and optimizer state.",
    )
    for case in cases(PREDICTED):
        if (case.model, case.context_length) == (LARGEST, longest):
            yield from ("", f"`{case.title}`, peak {format_bytes(peak_bytes(found[case]))}:", "")
            yield from _made_table(found[case])


def _made_table(snapshot: Snapshot) -> Iterator[str]:
    line = lines_in(snapshot)
    made = alike(one for one in alive_at(snapshot, peak_moment(levels(snapshot))) if one.allocated_at)
    yield from _head(["blocks", "each", "size", "category", "module", "line", "tensor"], numbers=(0, 1, 2))
    for one in made[:LISTED]:
        first = one[0]
        sizes = (f"{len(one):,}", format_bytes(first.size_bytes), format_bytes(first.size_bytes * len(one)))
        yield _row([*sizes, *map(escape, (first.category, module_of(first), line(first.stack), first.tensor))])
    rest = made[LISTED:]
    total = sum(block.size_bytes for one in rest for block in one)
    yield _row([f"{sum(map(len, rest)):,}", "", format_bytes(total), f"{len(rest)} smaller rows", "", "", ""])


def _precision(found: Snapshots) -> Iterator[str]:
    longest = max(CONTEXT_LENGTHS)
    yield "## fp32 against bf16"
    yield ""
    yield _prose(
        "Autocast halves what most layers save, and keeps a bfloat16 copy of each weight for the backward, whatever",
        "the context length.",
    )
    for mode in MODES:
        fp32, bf16 = (Case(PREDICTED, LARGEST, mode, longest, precision) for precision in ("fp32", "bf16"))
        report = compare(found[fp32], found[bf16], (fp32.title, bf16.title), LISTED)
        change = next(fact for fact in report.facts if fact.key == "change_bytes")
        yield from ("", f"`{fp32.title}` → `{bf16.title}`: {shown(change.value, change.kind)}, of which:", "")
        yield from _markdown(_table(report, "changes"))


def _prose(*parts: str) -> str:
    return textwrap.fill(" ".join(parts), 120, break_long_words=False, break_on_hyphens=False)


def _table(report: Report, key: str) -> Table:
    return next(one for one in report.tables if one.key == key)


def _markdown(table: Table) -> Iterator[str]:
    numbers = [at for at, column in enumerate(table.columns) if column.kind != "text"]
    yield from _head([column.title for column in table.columns], numbers)
    for row in table.rows:
        yield _row([escape(shown(value, column.kind)) for value, column in zip(row, table.columns, strict=True)])


def _head(titles: Sequence[str], numbers: Sequence[int]) -> Iterator[str]:
    yield _row(titles)
    yield f"|{'|'.join('--:' if at in numbers else '---' for at in range(len(titles)))}|"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Make what is not there, and print the page."""
    parser = argparse.ArgumentParser(description="Where the memory of the lab's models goes, as Markdown.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"where the snapshots lie (default: {FOLDER})")
    folder: Path = parser.parse_args().folder
    if not torch.cuda.is_available():
        sys.exit(f"PyTorch's recorder needs its CUDA build and a driver, or nocuda's:\n  {COMMAND}")
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for engine in (PREDICTED, CUDA, CPU):
        for case in cases(engine):
            path = make(case, folder)
            found[case] = choose(read_snapshots(path), None, path)
            print(f"{engine}: {case.title}", file=sys.stderr, flush=True)
    print("\n".join(page(found)))


if __name__ == "__main__":
    main()
