"""``perflab memory``: shows a snapshot, or what makes the peak of one higher than that of another."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from perflab.base.errors import UsageError
from perflab.snapshots.difference import compare
from perflab.snapshots.model import Snapshot
from perflab.snapshots.reading import choose, choose_two, read_snapshots, with_others_named
from perflab.snapshots.report import as_json, as_markdown, as_text
from perflab.snapshots.summary import MOST_ROWS, summarize


def memory_command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Show where the memory of a snapshot goes, or why the peak of a second one is higher or lower.

    Reads the pickles of torch.cuda.memory._dump_snapshot, the files of the memory_snapshot fixture, and predictions.
    Nothing in a file is run, so files from elsewhere do no harm.
    """
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="snapshot; two are compared: before, after")
    parser.add_argument(
        "--format", choices=("text", "markdown", "json", "html"), default="text", help="(default: text)"
    )
    parser.add_argument(
        "--device",
        metavar="N[,M]",
        help="number of the GPU, or of each file's; without it, one that ran out of memory, else that of most events",
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=MOST_ROWS,
        metavar="N",
        help=f"rows of a table before smaller ones are summed up (default: {MOST_ROWS})",
    )

    def run(given: argparse.Namespace) -> int:
        if len(given.files) > 2:
            raise UsageError(f"{len(given.files)} files are given", "give one to show it, or two to compare them")
        if given.rows < 1:
            raise UsageError(f"--rows={given.rows}", "give how many rows a table may have, 1 or more")
        found = [read_snapshots(path) for path in given.files]
        names = [str(path) for path in given.files]
        chosen: tuple[Snapshot, ...]
        if len(found) == 2:
            chosen = choose_two(found[0], found[1], given.device, (given.files[0], given.files[1]))
        else:
            chosen = (choose(found[0], given.device, given.files[0]),)
        snapshots = [with_others_named(one, of_file) for one, of_file in zip(chosen, found, strict=True)]
        if len(snapshots) == 2:
            report = compare(snapshots[0], snapshots[1], (names[0], names[1]), given.rows)
        else:
            report = summarize(snapshots[0], names[0], given.rows)
        if given.format == "html":
            from perflab.snapshots.page import as_page  # jinja2 is loaded for pages alone

            text = as_page(report, list(zip(names, snapshots, strict=True)))
        else:
            text = {"text": as_text, "markdown": as_markdown, "json": as_json}[given.format](report)
        sys.stdout.write(text)
        return 0

    return run
