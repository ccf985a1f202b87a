"""``perflab doctor --gate``: record trials, judge them, print the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from perflab.child import workplace
from perflab.doctor.table import gate_table
from perflab.doctor.trials import append, read, record_trial
from perflab.doctor.workloads import KINDS, write_modules
from perflab.errors import UsageError


def measure_gate(
    trials: int, log: Path | None, say: Callable[[str], None], kinds: Sequence[str] = tuple(KINDS)
) -> list[str]:
    """Record so many trials and judge them, together with what the log held before.

    Args:
        trials: how many to record; 0 judges what the log holds.
        log: file that is appended to, one line a measurement; None keeps it for this call alone.
        say: told the progress.
        kinds: of workloads, that are recorded.

    Returns:
        The table, line by line.

    Raises:
        RivalError: the workloads do not run here.
        UsageError: no trials, and a log that holds none.
    """
    with workplace() as folder:
        write_modules(folder)
        kept = log or folder / "trials.jsonl"
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.touch()
        read(kept)  # what is no log is refused before anybody waits
        try:
            for number in range(trials):
                say(f"trial {number + 1} of {trials}")
                for line in record_trial(folder, number, kinds):
                    append(kept, line)
        except KeyboardInterrupt:
            say("stopped; results of the trials so far:")
        lines = read(kept)
        if not lines:
            raise UsageError("there is nothing to judge: no trial was recorded", "record some: --trials=10")
        return gate_table(lines)
