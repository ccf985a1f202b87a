"""The plugin's options: each exists on the command line and, under the same name, as an ini key."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Option:
    """One setting. ``flag`` options take no value."""

    name: str
    default: str
    help: str
    metavar: str | None = None
    flag: bool = False
    choices: tuple[str, ...] = ()

    @property
    def dest(self) -> str:
        """Ini key, and attribute of the parsed options."""
        return self.name.removeprefix("--").replace("-", "_")


OPTIONS = (
    Option("--perf-update", "false", "save what was measured as the new baseline", flag=True),
    Option("--perf-update-new", "false", "save baselines of cases that have no comparable one", flag=True),
    Option("--perf-reason", "", "why what is saved is meant; kept in the baselines, and moves anchors", metavar="TEXT"),
    Option("--perf-prune", "false", "remove stored baselines whose cases no longer exist", flag=True),
    Option("--perf-baselines", "baselines", "directory of the saved baselines", metavar="DIR"),
    Option("--perf-threshold", "5%", "slowdown of the median that counts", metavar="SHARE"),
    Option("--perf-memory-threshold", "0", "growth of peak memory that counts", metavar="SHARE"),
    Option("--perf-floor", "2us", "differences in time below this never count", metavar="TIME"),
    Option(
        "--perf-check",
        "on",
        "on: a worse case fails; off: measure only; strict: a case that can't be judged fails too",
        choices=("on", "off", "strict"),
    ),
    Option(
        "--perf-counts",
        "on",
        "operators, allocations, launches of a call. on: one more fails; report: shown only; off: not counted",
        choices=("on", "report", "off"),
    ),
    Option(
        "--perf-instructions",
        "auto",
        "count a call's instructions too, on a CPU; auto: where the system lets us; callgrind: under valgrind, slowly",
        choices=("off", "auto", "callgrind"),
    ),
    Option("--perf-device", "auto", "where to measure: auto, cpu, cuda or cuda:N", metavar="DEVICE"),
    Option("--perf-predict", "false", "run nothing: predict each case on fake tensors, for --perf-gpu", flag=True),
    Option("--perf-gpu", "h100", "the GPU that is predicted for: h100, a100-40gb, rtx4090, ...", metavar="NAME"),
    Option(
        "--perf-snapshots", "false", "write the memory timeline of each prediction to .perflab/snapshots/", flag=True
    ),
    Option("--perf-budget", "10", "time for one case: warm-up, samples and memory", metavar="SECONDS"),
    Option(
        "--perf-total-budget",
        "",
        "time for all cases; one that declares more (perf.requires) than is left, or finds nothing left, is skipped",
        metavar="SECONDS",
    ),
    Option(
        "--perf-settle",
        "on",
        "on: what a stored number cannot tell is settled in turns with the commit that it was saved at; off: it stays",
        choices=("on", "off"),
    ),
    Option("--perf-replicates", "3", "processes that measure a baseline, or confirm a slowdown", metavar="N"),
    Option(
        "--perf-against",
        "",
        "compare with another commit, branch, tag, checkout or installed version, measured here and now, in turns",
        metavar="REF|PATH",
    ),
    Option("--perf-against-threshold", "2%", "slowdown that counts under --perf-against", metavar="SHARE"),
    Option(
        "--perf-kernels",
        "",
        "Triton kernels that the compiled_kernel fixture and the kernels command compile ahead of time",
        metavar="PACKAGE.MODULE:ATTRIBUTE[,...]",
    ),
    Option("--perf-arch", "80,90,100", "architectures that kernels are compiled for", metavar="N[,N...]"),
    Option(
        "--perf-side-by-side",
        "",
        "show this parameter's levels against each other, fastest first, below the table",
        metavar="PARAMETER",
    ),
    Option("--perf-json", "", "write all results to this file", metavar="FILE"),
)

REPLICATE_OPTION = "--perf-replicate"
"""How a fresh process is told what to measure: the path of a job file. Not for users."""


def add_options(parser: pytest.Parser) -> None:
    """Register every option with its ini twin."""
    group = parser.getgroup("perflab", "performance of PyTorch code (perflab)")
    for option in OPTIONS:
        shown = f"{option.help} (default: {option.default})" if not option.flag and option.default else option.help
        shown = shown.replace("%", "%%")
        if option.flag:
            group.addoption(option.name, dest=option.dest, action="store_true", default=None, help=shown)
        else:
            group.addoption(
                option.name,
                dest=option.dest,
                default=None,
                help=shown,
                metavar=option.metavar,
                choices=option.choices or None,
            )
        parser.addini(option.dest, shown.replace("%%", "%"), type="string", default=None)
    group.addoption(REPLICATE_OPTION, dest="perf_replicate", default=None, help=argparse.SUPPRESS)
