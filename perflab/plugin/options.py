"""What may be asked of the plugin: options, each on the command line and as an ini key of its name, and the marker's
arguments. How values are read, ``settings.py`` and ``marker.py`` say.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import pytest


class Option(NamedTuple):
    """One setting. ``flag`` options take no value."""

    name: str
    default: str
    help: str
    metavar: str | None = None
    flag: bool = False
    choices: tuple[str, ...] = ()
    variable: str | None = None
    """Environment variable that counts where the command line is silent."""
    measures: bool = True
    """Whether giving it on the command line has cases measured that are mixed with other tests."""

    @property
    def dest(self) -> str:
        """Ini key, and attribute of the parsed options."""
        return self.name.removeprefix("--").replace("-", "_")


OPTIONS = (
    Option("--perf", "false", "measure perf cases also where they are mixed with other tests", flag=True),
    Option("--perf-only", "false", "measure perf cases, and skip all other tests", flag=True),
    Option("--perf-disable", "false", "run each perf case once, untimed", flag=True, measures=False),
    Option("--perf-skip", "false", "skip perf cases", flag=True, measures=False),
    Option("--perf-update", "false", "save what was measured as the new baseline", flag=True),
    Option("--perf-update-new", "false", "save baselines of cases that have no comparable one", flag=True),
    Option("--perf-reason", "", "why what is saved is meant; kept in the baselines, and moves anchors", metavar="TEXT"),
    Option(
        "--perf-noisy",
        "refuse",
        "times too noisy to see a slowdown of twice the threshold. refuse: they are not saved; accept: they are",
        choices=("refuse", "accept"),
    ),
    Option(
        "--perf-machine",
        "",
        "name of the pool of identical machines that this one belongs to; their times are compared with each other "
        "(default: this machine alone; environment variable: PERFLAB_MACHINE)",
        metavar="NAME",
        variable="PERFLAB_MACHINE",
    ),
    Option("--perf-prune", "false", "remove stored baselines whose cases no longer exist", flag=True, measures=False),
    Option("--perf-baselines", "baselines", "directory of the saved baselines", metavar="DIR", measures=False),
    Option("--perf-threshold", "5%", "slowdown of the median that counts", metavar="SHARE"),
    Option("--perf-memory-threshold", "0", "growth of peak memory that counts", metavar="SHARE"),
    Option("--perf-floor", "2us", "differences in time below this never count", metavar="TIME"),
    Option(
        "--perf-check",
        "on",
        "on: a worse case fails; off: measure only; strict: a case that can't be judged fails too; exact: memory "
        "and counts alone, and a case without saved ones fails",
        choices=("on", "off", "strict", "exact"),
    ),
    Option(
        "--perf-counts",
        "on",
        "operators, allocations, launches of a call. on: one more fails; report: shown only; off: not counted",
        choices=("on", "report", "off"),
    ),
    Option(
        "--perf-cache",
        "warm",
        "what a call finds in the device's caches. warm: what the last one left; cold: nothing of it",
        choices=("warm", "cold"),
    ),
    Option(
        "--perf-cuda-graph", "false", "time calls as a CUDA graph replays them, without launches by the host", flag=True
    ),
    Option(
        "--perf-instructions",
        "auto",
        "count instructions on a CPU; auto: in one thread, if the system allows it; callgrind: under valgrind, slow",
        choices=("off", "auto", "callgrind"),
    ),
    Option("--perf-device", "auto", "where to measure: auto, cpu, cuda or cuda:N", metavar="DEVICE", measures=False),
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
        "--perf-timeout",
        "auto",
        "a case without a sign of life for so long hangs, and fails; auto: ten times its budget, 15 min at least",
        metavar="SECONDS|off",
        measures=False,
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
        measures=False,
    ),
    Option(
        "--perf-arch", "80,90,100", "architectures that kernels are compiled for", metavar="N[,N...]", measures=False
    ),
    Option("--perf-columns", "median,spread,vs_base,peak", "what the table shows of each case", metavar="NAME[,...]"),
    Option(
        "--perf-sort", "collected", "sort the table by a column, name or fullname; -NAME: descending", metavar="[-]NAME"
    ),
    Option(
        "--perf-side-by-side",
        "",
        "show this parameter's levels against each other, fastest first, below the table",
        metavar="PARAMETER",
    ),
    Option("--perf-json", "", "write all results to this file", metavar="FILE"),
)

MARKER_ARGUMENTS = {
    "threshold": "slowdown that counts, such as '10%' or 0.1",
    "memory_threshold": "growth of peak memory that counts, such as '1%'",
    "floor": "differences below this never count, such as '2us'",
    "counts": "'on', 'report' or 'off': whether counts are gated, shown, or not taken",
    "cache": "'warm' or 'cold': what a call finds in the device's caches, what the last one left or nothing of it",
    "cuda_graph": "True: time calls as a CUDA graph replays them",
    "budget": "time for the case, in seconds, such as 5 or '500ms'",
    "timeout": "the case is hung if it gives no sign of life for so long, such as '1h' or 'off'",
    "warmup": "exactly so many warm-up calls, instead of until readings agree",
    "fresh_process": (
        "True: measure in a new process, where nothing is warm; here the callable runs once, for its result"
    ),
    "side_by_side": "the parameter whose levels are shown against each other",
    "study": "a title; cases of one title share a table",
    "columns": "what that table shows, such as 'median, tokens/s, peak, loss'",
    "versus": "what it holds cases against: a parameter and its base, such as 'impl=naive'",
    "last": "True: where the run's time is limited, measure after all that is not marked so",
    "allow_nan": "True: a result that holds NaN is no failure",
}
"""Arguments of ``@pytest.mark.perf``, and what each means."""

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


def options_given(config: pytest.Config) -> list[str]:
    """Which options stand on the command line, ``addopts`` included, by their ``dest``. Ini keys are none."""
    return [option.dest for option in OPTIONS if config.getoption(option.dest, None) is not None]
