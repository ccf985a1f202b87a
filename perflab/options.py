"""The plugin's options, each on the command line and as an ini key of the same name, and the marker's arguments.

``settings/given.py``, ``running/config/reading.py`` and ``running/config/marker.py`` define how values are parsed.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import pytest


class Option(NamedTuple):
    """One option. An option with ``flag`` takes no value."""

    name: str
    """The name; the ini key and the attribute among the parsed options follow from it."""
    default: str
    help: str
    metavar: str | None = None
    flag: bool = False
    choices: tuple[str, ...] = ()
    variable: str | None = None
    """The environment variable that is used if the option is not on the command line; it precedes the ini key."""
    const: str | None = None
    """The option's value if it is given without one; None: the option requires a value."""
    also: str | None = None
    """Another name for it on the command line."""
    measures: bool = True
    """Whether the option on the command line makes perf cases measured even if they are mixed with other tests."""

    @property
    def dest(self) -> str:
        """The option's ini key, and its attribute among the parsed options."""
        return self.name.removeprefix("--").replace("-", "_")


OPTIONS = (
    Option("--perf", "false", "measure perf cases even if other tests are selected too", flag=True),
    Option("--perf-only", "false", "measure perf cases and skip all other tests", flag=True),
    Option(
        "--perf-adopt",
        "false",
        "make perf cases of tests written for pytest-benchmark or CodSpeed (benchmark fixture or marker)",
        flag=True,
        measures=False,
    ),
    Option("--perf-disable", "false", "run each perf case once, untimed", flag=True, measures=False),
    Option("--perf-skip", "false", "skip perf cases", flag=True, measures=False),
    Option("--perf-update", "false", "save the measurements as new baselines", flag=True),
    Option("--perf-update-new", "false", "save baselines only for cases without a comparable one", flag=True),
    Option(
        "--perf-reason", "", "why the change is intended; stored in the baselines, and moves anchors", metavar="TEXT"
    ),
    Option(
        "--perf-noisy",
        "refuse",
        "times too noisy to detect a slowdown of twice the threshold. refuse: do not save them; accept: save them",
        choices=("refuse", "accept"),
    ),
    Option(
        "--perf-machine",
        "",
        "pool of identical machines that share time baselines "
        "(default: this machine only; environment variable: PERFLAB_MACHINE)",
        metavar="NAME",
        variable="PERFLAB_MACHINE",
    ),
    Option("--perf-prune", "false", "delete baselines of cases that no longer exist", flag=True, measures=False),
    Option(
        "--perf-prune-case",
        "",
        "with --perf-prune: delete this case's baselines too, or those of all cases of this test, if not collected",
        metavar="NODEID",
        measures=False,
    ),
    Option("--perf-baselines", "baselines", "directory of the baselines", metavar="DIR", measures=False),
    Option("--perf-threshold", "5%", "slowdown of the median that counts", metavar="SHARE"),
    Option("--perf-memory-threshold", "0", "growth of peak memory that counts", metavar="SHARE"),
    Option(
        "--perf-memory-limit", "", "fail a perf case whose peak is above this, whatever its baseline", metavar="SIZE"
    ),
    Option(
        "--perf-leak-calls",
        "0",
        "make so many more calls, and fail a case that holds more memory after each of them; 0: do not",
        metavar="N",
    ),
    Option("--perf-floor", "2us", "ignore time differences below this", metavar="TIME"),
    Option(
        "--perf-check",
        "on",
        "on: regressions fail; off: measure only; strict: cases that cannot be judged fail too; exact: compare memory "
        "and counts only, and fail cases without a baseline of them",
        choices=("on", "off", "strict", "exact"),
    ),
    Option(
        "--perf-fail-improved",
        "false",
        "fail a case that improved until --perf-update saves it, so that its baseline does not go stale",
        flag=True,
    ),
    Option(
        "--perf-adversarial",
        "false",
        "run what perf measures and verify checks in processes of their own, which know no answer and are not believed",
        flag=True,
        measures=False,
    ),
    Option(
        "--perf-counts",
        "on",
        "operators, allocations, launches of a call. on: an increase fails; report: show changes; off: do not count",
        choices=("on", "report", "off"),
    ),
    Option(
        "--perf-cache",
        "warm",
        "device caches before each call. warm: as the last call left them; cold: evicted",
        choices=("warm", "cold"),
    ),
    Option("--perf-cuda-graph", "false", "time calls as CUDA graph replays, without host launches", flag=True),
    Option(
        "--perf-instructions",
        "auto",
        "count CPU instructions. auto: single-threaded only, if the system allows it; callgrind: under valgrind, slow",
        choices=("off", "auto", "callgrind"),
    ),
    Option(
        "--perf-device",
        "auto",
        "device to measure on: auto, cpu, cuda, cuda:N, mps, xpu, ...",
        metavar="DEVICE",
        measures=False,
    ),
    Option("--perf-predict", "false", "predict each case for --perf-gpu on fake tensors; nothing runs", flag=True),
    Option("--perf-gpu", "h100", "GPU to predict for: h100, a100-40gb, rtx4090, ...", metavar="NAME"),
    Option(
        "--perf-dry-run",
        "",
        "run on CUDA without a GPU, with nothing computed: real memory, launches and host waits on that GPU "
        "(default: that of --perf-gpu); needs PyTorch's CUDA build",
        metavar="GPU",
        const="on",
        variable="PERFLAB_DRY_RUN",
    ),
    Option(
        "--perf-world-size",
        "",
        "numbers of processes for the cases that are marked with world_size (default: those of the mark)",
        metavar="N[,N...]",
        also="--perf-world",
    ),
    Option(
        "--perf-ranks",
        "",
        "ranks that a dry run of such a case plays, one after the other (default: the first and the last): the numbers "
        "are those of the first, and the collectives of all have to match; a prediction plays the first alone",
        metavar="R[,R...]",
    ),
    Option(
        "--perf-network",
        "8x400",
        "network between the GPUs that ranks are predicted for: dgx-h100, p5, ..., or GPUs a node x Gb/s for each",
        metavar="NAME",
    ),
    Option("--perf-snapshots", "false", "write a memory snapshot of each case to .perflab/snapshots/", flag=True),
    Option(
        "--perf-profile",
        "false",
        "profile each case after measuring it: where the time of a call goes, by category, operator, module and phase",
        flag=True,
    ),
    Option(
        "--perf-evidence",
        "on",
        "on: profile both versions of a case that became worse, and report what changed; off: do not",
        choices=("on", "off"),
    ),
    Option("--perf-budget", "10", "time per case for warm-up, samples and memory", metavar="SECONDS"),
    Option(
        "--perf-total-budget",
        "",
        "time for all cases; a case is skipped if no time is left, or if perf.requires states more than is left",
        metavar="SECONDS",
    ),
    Option(
        "--perf-timeout",
        "auto",
        "fail a case that shows no progress for this long; auto: ten times its expected time, at least 15 min",
        metavar="SECONDS|off",
        measures=False,
    ),
    Option(
        "--perf-settle",
        "on",
        "on: re-run inconclusive cases interleaved with the baseline's commit; off: do not",
        choices=("on", "off"),
    ),
    Option("--perf-replicates", "3", "processes that measure a baseline or confirm a slowdown", metavar="N"),
    Option(
        "--perf-against",
        "",
        "A/B comparison with another commit, branch, tag, checkout or installed version, interleaved on this machine",
        metavar="REF|PATH",
    ),
    Option("--perf-against-threshold", "2%", "slowdown that counts under --perf-against", metavar="SHARE"),
    Option(
        "--perf-kernels",
        "",
        "Triton kernels to compile ahead of time, for the compiled_kernel fixture and `perflab kernels`",
        metavar="PACKAGE.MODULE:ATTRIBUTE[,...]",
        measures=False,
    ),
    Option("--perf-arch", "80,90,100", "architectures to compile kernels for", metavar="N[,N...]", measures=False),
    Option("--perf-columns", "median,spread,vs_base,peak", "columns of the results table", metavar="NAME[,...]"),
    Option(
        "--perf-sort",
        "collected",
        "sort the results table by a column, name or fullname; -NAME: descending",
        metavar="[-]NAME",
    ),
    Option(
        "--perf-side-by-side",
        "",
        "compare the values of this parameter below the table, fastest first",
        metavar="PARAMETER",
    ),
    Option("--perf-json", "", "write all results to this JSON file", metavar="FILE"),
)

MARKER_ARGUMENTS = {
    "threshold": "slowdown that counts, such as '10%' or 0.1",
    "memory_threshold": "growth of peak memory that counts, such as '1%'",
    "memory_limit": "the peak that the case may have, whatever its baseline, such as '2GiB', or 'off'",
    "leak_calls": "so many more calls are made; memory held that grows in each of them fails the case; 0: none",
    "floor": "time differences below this are ignored, such as '2us'",
    "counts": "'on', 'report' or 'off': gate counts, only show them, or do not count",
    "cache": "'warm' or 'cold': device caches before each call, as the last call left them or evicted",
    "cuda_graph": "True: time calls as CUDA graph replays",
    "budget": "time for the case, such as 5 (seconds) or '500ms'",
    "timeout": "the case fails if it shows no progress for this long, such as '1h', or 'off'",
    "warmup": "fixed number of warm-up calls, instead of warming up until timings agree",
    "fresh_process": (
        "True: measure in a new process, where nothing is warm; the test's own process calls once, for the result"
    ),
    "gpus": "GPUs that the case needs in a job of --perf-slurm (default: the file's, for each rank)",
    "nodes": "nodes among which --perf-slurm divides the ranks of the case (default: 1)",
    "world_size": "processes that run the case at once, as ranks of one group, such as 2 or [1, 2, 4]",
    "side_by_side": "the parameter whose values are compared below the table",
    "study": "a title; cases of one title share a table",
    "columns": "what that table shows, such as 'median, tokens/s, peak, loss'",
    "versus": "what its cases are compared with: a parameter and its base, such as 'impl=naive'",
    "last": "True: under --perf-total-budget, measure after all cases without this mark",
    "allow_nan": "True: allow NaN in the result",
    "predict": "False: skip the case under --perf-predict, and never predict it",
    "profile": "True: profile the case after measuring it, as --perf-profile does for all",
}
"""The arguments of ``@pytest.mark.perf``, each with its meaning."""

TIER_OF = {"compiled_kernel": "compiled"}
"""The fixtures that make a test a case of one particular tier, with the tier's name."""
REPLICATE_OPTION = "--perf-replicate"
"""The option that gives a fresh process the path of its job file; not for users."""

SWEEP_OPTION = "--perf-slurm"
"""The option that runs cases as jobs. It has no ini key, since a job repeats the command without it."""

SWEEP_JOB_OPTION = "--perf-sweep-job"
"""The option that gives a job of ``--perf-slurm`` the path of its file; not for users."""

ATTENTION_OPTION = "--attention"
"""The option that names the candidates of the attention suite. It has no ini key, since it deselects other tests."""


def add_options(parser: pytest.Parser) -> None:
    """Register every option with its ini key."""
    group = parser.getgroup("perflab", "performance of PyTorch code (perflab)")
    for option in OPTIONS:
        shown = f"{option.help} (default: {option.default})" if not option.flag and option.default else option.help
        shown = shown.replace("%", "%%")
        if option.flag:
            group.addoption(option.name, dest=option.dest, action="store_true", default=None, help=shown)
        else:
            group.addoption(
                option.name,
                *([option.also] if option.also is not None else []),
                dest=option.dest,
                default=None,
                help=shown,
                metavar=option.metavar,
                choices=option.choices or None,
                **({"nargs": "?", "const": option.const} if option.const is not None else {}),
            )
        parser.addini(option.dest, shown.replace("%%", "%"), type="string", default=None)
    suite = parser.getgroup("perflab attention suite", "correctness of attention kernels (perflab)")
    suite.addoption(
        ATTENTION_OPTION,
        default="",
        metavar="NAME[,NAME...]",
        help="run only tests of these attention candidates: variants of perflab.lab, or package.module:function",
    )
    group.addoption(REPLICATE_OPTION, dest="perf_replicate", default=None, help=argparse.SUPPRESS)
    group.addoption(
        SWEEP_OPTION,
        dest="perf_slurm",
        nargs="?",
        const="on",
        default=None,
        metavar="FILE",
        help="run the cases as jobs of Slurm, or of this machine where there is none; FILE (TOML) says how",
    )
    group.addoption(SWEEP_JOB_OPTION, dest="perf_sweep_job", default=None, help=argparse.SUPPRESS)
