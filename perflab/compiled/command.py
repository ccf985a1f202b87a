"""The arguments of ``perflab kernels``; ``run/command.py`` does the work."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

from perflab.base.errors import UsageError
from perflab.compiled.compiler.architectures import parse_architectures
from perflab.report.summary import progress, show
from perflab.results.documents import write_document
from perflab.tables.escaping import lines_of
from perflab.tiers.interface import Run


def kernels_command(parser: argparse.ArgumentParser) -> Run:
    """Compile Triton kernels ahead of time, without a GPU, and compare their resources with the baselines.

    Compares registers, spills, shared memory, tensor-core instructions and occupancy of every registered kernel on
    every architecture. Exits with 1 if a kernel does not compile, cannot run, or got worse.
    """
    parser.add_argument(
        "registrations",
        nargs="*",
        metavar="REGISTRATION",
        help="package.module:ATTRIBUTE with the examples (default: perf_kernels of pytest's ini file)",
    )
    parser.add_argument("--arch", metavar="N[,N...]", help="architectures (default: perf_arch of the ini file)")
    parser.add_argument(
        "--against", metavar="PYTHON", help="compare with another environment's compiler instead of the baselines"
    )
    parser.add_argument("--update", action="store_true", help="save the results as new baselines")
    parser.add_argument("--reason", metavar="TEXT", help="why the change is intended; stored in the baselines")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to this JSON file")
    parser.add_argument(
        "--loops", action="store_true", help="print what an iteration of each loop issues, and its bound"
    )

    def run(given: argparse.Namespace) -> int:
        from perflab.compiled.run.command import compile_kernels  # it loads pytest, to read the ini file

        if given.reason is not None and not given.update:
            raise UsageError("--reason without --update", "a reason is one for saving: add --update")
        if given.against is not None and given.update:
            raise UsageError("--against with --update", "compare first; then save without --against")
        try:
            archs = parse_architectures(given.arch) if given.arch is not None else None
        except ValueError as error:
            raise UsageError(f"--arch: {error}", "name them, such as --arch=80,90,gfx942") from error
        chosen = [*given.registrations, *([f"--arch={given.arch}"] if given.arch is not None else [])]
        document, notes = compile_kernels(
            given.registrations,
            archs,
            update=given.update,
            reason=given.reason,
            command=["perflab", "kernels", *chosen],
            say=progress,
            against=given.against,
        )
        if given.loops:
            from perflab.compiled.report import loops_of_kernels

            for line in loops_of_kernels(document.results):
                print(line)
        for text in [result.failure for result in document.results if result.failure]:
            print(f"{lines_of(text)}\n")
        if given.json is not None:
            write_document(document, given.json)
            notes.append(f"wrote {given.json}")
        show(document, notes, accept=shlex.join(["perflab", "kernels", *chosen, "--update"]))
        return document.exitstatus

    return run


def machine_code_command(parser: argparse.ArgumentParser) -> Run:
    """Print the loops of kernels that somebody else has compiled: what an iteration issues, and a bound on its speed.

    Reads a cubin, or a library that holds cubins, such as PyTorch's libtorch_cuda.so. Needs Triton, which includes
    NVIDIA's disassembler; no GPU.
    """
    parser.add_argument("file", type=Path, metavar="FILE", help="a cubin, or a library such as libtorch_cuda.so")
    parser.add_argument(
        "--match", default="", metavar="REGEX", help="kernels whose mangled name matches (default: all)"
    )
    parser.add_argument("--arch", default="80", metavar="N", help="the architecture, of a library (default: 80)")
    parser.add_argument("--warps", type=int, default=4, metavar="N", help="warps of a block (default: 4)")
    parser.add_argument(
        "--shared", type=int, default=0, metavar="BYTES", help="dynamic shared memory of a block (default: 0)"
    )

    def run(given: argparse.Namespace) -> int:
        from perflab.compiled.machine.library import describe_kernels

        try:
            arch, *others = parse_architectures(given.arch)
            if others or not isinstance(arch, int):
                raise ValueError(f"{given.arch} is not one architecture that has cubins")
            re.compile(given.match)
        except ValueError as error:
            raise UsageError(f"--arch: {error}", "name one of NVIDIA's, such as --arch=80") from error
        except re.error as error:
            raise UsageError(f"--match={given.match}: {error}", "give a regular expression; escape ( as \\(") from error
        if given.warps < 1 or given.shared < 0:
            raise UsageError(
                "--warps and --shared are sizes of a block", "give at least one warp, and no less than 0 B"
            )
        for line in describe_kernels(given.file, arch, given.match, num_warps=given.warps, shared_bytes=given.shared):
            print(line)
        return 0

    return run
