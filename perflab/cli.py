"""The ``perflab`` command: merges, reports and checks the machine, without a test run; and the tiers' own commands.

A command is a function that declares its arguments on a parser and returns the function that runs it; its docstring is
its help. A new command is a function and a line in ``COMMANDS``, or a command of a tier. ``doctor`` alone loads torch.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib import util
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from perflab.attention.command import attention_command
from perflab.base.errors import PerflabError, UsageError
from perflab.history.command import history_command
from perflab.nsys.command import nsys_command
from perflab.report.command import compare_command, report_command
from perflab.report.summary import ending, findings_left_out, measured_elsewhere, other_failures, show
from perflab.results import environment
from perflab.results.documents import PASSED, merge, read_document, write_document
from perflab.snapshots.command import memory_command
from perflab.store.case_files import join_baselines
from perflab.tables.escaping import for_reading, lines_of, one_line
from perflab.tiers.interface import Run, by_folder, tiers
from perflab.units import format_count
from perflab.untrusted.command import verify_command

BAD_INPUT = 2


def merge_command(parser: argparse.ArgumentParser) -> Run:
    """Combine the results of shards and reruns into one file; with --baselines, combine their baselines.

    Shows the table of the combined run. Exits with 1 if anything failed, else with 0.
    """
    parser.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="results file from --perf-json; with --baselines, a directory",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="file to write (default: merged.json); with --baselines, the directory",
    )
    parser.add_argument(
        "--baselines", action="store_true", help="combine directories of baselines into the --output directory"
    )

    def run(given: argparse.Namespace) -> int:
        if given.baselines:
            if given.output is None:
                raise UsageError("--baselines without --output", "name the directory to write to: --output DIR")
            entries, files = join_baselines(given.paths, given.output, by_folder())
            print(one_line(f"joined {format_count(entries, 'baseline')} into {', '.join(map(str, files))}"))
            return 0
        parts = [read_document(path) for path in given.paths]
        merged = merge(parts)
        output = given.output if given.output is not None else Path("merged.json")
        write_document(merged, output)
        merged = for_reading(merged)
        endings = [f"{path}: {text}" for path, part in zip(given.paths, parts, strict=True) for text in ending(part)]
        others = [*other_failures(merged), *measured_elsewhere(parts, merged), *findings_left_out(parts, merged)]
        show(merged, [*endings, *others, f"wrote {output}"])
        return 0 if merged.exitstatus == PASSED else 1

    return run


_PARTS = (
    ("torch", "torch", "what is measured"),
    ("triton", "triton", "the lab's Triton kernels: pip install 'perflab[triton]'"),
    ("pytest-benchmark", "pytest_benchmark", "results in its session and files: pip install 'perflab[benchmark]'"),
    ("pytest-xdist", "xdist", "-n: pip install 'perflab[xdist]'"),
    ("nvidia-ml-py", "pynvml", "clocks and throttling of a GPU as evidence: pip install 'perflab[nvml]'"),
)
_PROGRAMS = (
    ("git", "--perf-against=COMMIT: install git"),
    ("valgrind", "--perf-instructions=callgrind: install valgrind"),
)


def checkup() -> list[str]:
    """Return one line for each part: found, or its purpose and its installation; and what each accelerator reports."""
    lines = [f"processor: {environment.cpu_name()}, {format_count(environment.usable_cores(), 'core')}"]
    lines += [_part(*part) for part in _PARTS]
    lines += [f"{name}: {shutil.which(name) or f'missing ({use})'}" for name, use in _PROGRAMS]
    lines.append(f"CUDA device files: {'found' if os.path.exists('/dev/nvidiactl') else 'none'}")
    return lines + _accelerators() + _load()


def _part(package: str, module: str, use: str) -> str:
    if util.find_spec(module) is None:
        return f"{package}: missing ({use})"
    try:
        return f"{package}: {version(package)}"
    except PackageNotFoundError:
        return f"{package}: found"


def _accelerators() -> list[str]:
    if util.find_spec("torch") is None:
        return []
    try:
        import torch
    except (ImportError, OSError) as error:
        return [f"accelerator: unknown (PyTorch cannot be imported: {error})"]
    from perflab.devices.backend import Quantity
    from perflab.devices.kinds import all_devices, backend_of
    from perflab.measure.clocks.device_clock import events_fail

    found = all_devices()[1:]
    if not found:
        return [f"accelerator: none (PyTorch {torch.__version__})"]
    alike: dict[tuple[str, ...], list[str]] = {}
    for device in found:
        backend, untrue = backend_of(device), events_fail(device)
        missing = backend.missing() | ({Quantity.EVENTS: untrue} if untrue is not None else {})
        lines = (f"{backend.name}", *(f"  no {quantity}: {why}" for quantity, why in missing.items()))
        alike.setdefault(lines, []).append(str(device))
    return [
        line
        for (name, *rest), devices in alike.items()
        for line in (f"accelerator: {', '.join(devices)}, {name}", *rest)
    ]


def _load() -> list[str]:
    try:
        one, five, fifteen = os.getloadavg()
    except (OSError, AttributeError):
        return ["load: unknown"]
    cores, told = environment.usable_cores(), f"load: {one:.2f}, {five:.2f}, {fifteen:.2f} over 1, 5 and 15 minutes"
    if one <= 0.5 * cores:
        return [told]
    lines, threads = [f"{told} (other processes are running: numbers will be noisy)"], environment.thread_count()
    if threads > 1 and threads + one > cores:  # some have to wait for a core
        lines.append(
            f"threads: PyTorch uses {threads} on {format_count(cores, 'core')} while others are busy: "
            "each operator waits for all\n"
            f"  -> use fewer, before anything else: OMP_NUM_THREADS={max(1, cores - math.ceil(one))}"
        )
    return lines


def doctor_command(_parser: argparse.ArgumentParser) -> Run:
    """Show what can be measured on this machine, what is missing, and how to get it."""

    def run(_given: argparse.Namespace) -> int:
        print("\n".join(checkup()))
        return 0

    return run


COMMANDS: dict[str, Callable[[argparse.ArgumentParser], Run]] = {
    "attention": attention_command,
    "compare": compare_command,
    "doctor": doctor_command,
    **{name: command for one in tiers() for name, command in one.commands().items()},
    "history": history_command,
    "memory": memory_command,
    "merge": merge_command,
    "nsys": nsys_command,
    "report": report_command,
    "verify": verify_command,
}


def build_parser() -> argparse.ArgumentParser:
    """Return the command line's parser: every command with its options, and the function that runs it as ``run``."""
    parser = argparse.ArgumentParser(
        prog="perflab", description="Work with perflab's results, test and compile kernels, and check this machine."
    )
    parser.set_defaults(hint="")  # a command may set a hint for unknown arguments
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, declare in COMMANDS.items():
        first, _, rest = (declare.__doc__ or "").partition("\n")
        told = " ".join([first, *rest.split()])
        own = commands.add_parser(name, help=first.rstrip("."), description=told)
        own.set_defaults(run=declare(own))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 2 for input that cannot be used."""
    parser = build_parser()
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error("; ".join(filter(None, (f"unrecognized arguments: {' '.join(unknown)}", given.hint))))
    run: Run = given.run
    try:
        return run(given)
    except PerflabError as error:
        print(lines_of(f"perflab {given.command}: {error}"), file=sys.stderr)
    except OSError as error:
        print(one_line(f"perflab {given.command}: {error.filename or 'output'}: {error.strerror}"), file=sys.stderr)
    return BAD_INPUT
