"""``python -m tests.studies.gate``: measures the error rates of the gate on this machine.

Measures unchanged code repeatedly; each trial takes about a minute per kind of workload. Prints the false alarms, the
share of injected slowdowns that were found, and the cost, for perflab's gates and for pytest-benchmark's rule on the
same data. With ``--log`` it can be stopped at any time and continued later.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from perflab.base.errors import PerflabError, UsageError
from tests.studies.gate.table import measure_gate
from tests.studies.gate.workloads import KINDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the rates; return the exit status: 2 for input that cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m tests.studies.gate", description=__doc__)
    parser.add_argument(
        "--trials", type=int, default=10, metavar="N", help="trials to record; 0: only judge the log (default: 10)"
    )
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="append the trials to this file, and judge all trials in it"
    )
    parser.add_argument(
        "--kinds",
        default=",".join(KINDS),
        metavar="KIND[,KIND...]",
        help="kinds of workload: mixed, long (one thread, 3 to 150 ms a call), python, uneven (5 %% more on the "
        "mean, in every 2nd to every 100th call) (default: all)",
    )
    given = parser.parse_args(arguments)
    try:
        if given.trials < 0:
            raise UsageError(f"--trials={given.trials}", "give how many trials to record, 0 to judge a log alone")
        kinds = given.kinds.split(",")
        if unknown := [kind for kind in kinds if kind not in KINDS]:
            raise UsageError(f"--kinds={given.kinds}: there is no {unknown[0]!r}", f"choose from {', '.join(KINDS)}")
        told = measure_gate(given.trials, given.log, lambda text: print(text, file=sys.stderr, flush=True), kinds)
    except PerflabError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    print("\n".join(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
