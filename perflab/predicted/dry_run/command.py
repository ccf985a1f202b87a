"""``perflab dry-run -- COMMAND``: runs any command on CUDA without a GPU."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from perflab.base.errors import UsageError
from perflab.predicted.dry_run.traffic import by_name, without_effect
from perflab.predicted.gpus import parse_modelled
from perflab.processes.child import workplace
from perflab.processes.lifeline import with_lifeline
from perflab.tiers.interface import Run
from perflab.units import format_bytes, format_count

if TYPE_CHECKING:
    from nocuda.library import Counts

_MOST = 10
"""The most kernels that are listed."""
_WAYS = ("host to device", "device to host")


def dry_run_command(parser: argparse.ArgumentParser) -> Run:
    """Run a command on CUDA without a GPU: PyTorch's CUDA build works unchanged, and nothing is computed.

    Memory, kernel launches, host waits, copies and errors are real; every number reads as zero. For pytest it is what
    --perf-dry-run is. For any other command the counts of its processes follow its output. Exits with its status.
    """
    parser.add_argument("--gpu", default="h100", metavar="NAME", help="which GPU (default: h100)")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="how many of them (default: 1)")
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command and its arguments")

    def run(given: argparse.Namespace) -> int:
        from perflab.predicted.dry_run.start import environment_of  # it loads pytest

        command = given.argv[1:] if given.argv[:1] == ["--"] else given.argv
        if not command:
            raise UsageError("no command is given", "perflab dry-run -- python train.py")
        if given.gpus < 1:
            raise UsageError(f"--gpus={given.gpus}", "give how many, 1 or more")
        try:
            gpu = parse_modelled(given.gpu)
        except ValueError as error:
            raise UsageError(f"--gpu: {error}", "name one of them: --gpu=h100") from error
        return _run(command, environment_of(gpu, given.gpus))

    return run


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    with workplace() as folder:
        counting = {**environment, "NOCUDA_REPORT": str(folder / "counts")}
        try:
            status = subprocess.run(with_lifeline(command), env=counting).returncode
        except OSError as error:
            raise UsageError(f"{command[0]}: {error.strerror}", "name a program that can be started") from error
        names = [os.path.basename(one) for one in command[:3]]
        is_module = names[0].startswith("python") and names[1:] == ["-m", "pytest"]
        if "pytest" not in names[0] and not is_module:  # pytest tells the counts itself
            from nocuda.library import read_counts

            found = [read_counts(path) for path in sorted(folder.iterdir())]
            print("\n".join(_told(found)), file=sys.stderr)
    if status < 0:
        print(f"perflab dry-run: {command[0]} was ended by signal {-status}", file=sys.stderr)
    return status if status >= 0 else 128 - status


def _told(processes: Sequence[Counts]) -> list[str]:
    """Return the lines that sum up the counts of all processes that opened CUDA."""
    if not processes:
        return ["dry run: no process opened CUDA"]
    # Each process may see other devices (CUDA_VISIBLE_DEVICES).
    peaks = [max(sizes) for sizes in zip_longest(*(one.peak_bytes for one in processes), fillvalue=0)]
    shown = [f"cuda:{number} {format_bytes(size)}" for number, size in enumerate(peaks) if size]
    launches, replayed = sum(one.launches for one in processes), sum(one.replayed for one in processes)
    lines = [
        f"dry run: {format_count(len(processes), 'process')} opened CUDA; nothing was computed",
        f"  most memory taken of a device by one process: {', '.join(shown) or 'none'}, beside its context",
        f"  {format_count(launches, 'launch')}" + (f", {replayed:,} of them in graphs" if replayed else ""),
        f"  {format_count(sum(one.synchronisations for one in processes), 'wait')} of the host for the device",
    ]
    for way in _WAYS:
        calls = sum(one.copies[way][0] for one in processes)
        size = sum(one.copies[way][1] for one in processes)
        lines += [f"  {format_bytes(size)} copied {way}, {format_count(calls, 'time')}"] if calls else []
    kernels = sum((by_name(one) for one in processes), Counter[str]())
    lines += [f"  {many:>7,}  {name}" for name, many in kernels.most_common(_MOST)]
    lines += [f"           and {format_count(len(kernels) - _MOST, 'more kernel')}"] if len(kernels) > _MOST else []
    unknown = without_effect(name for one in processes for name in one.unknown)
    return lines + ([f"  called, and did nothing here: {', '.join(unknown)}"] if unknown else [])
