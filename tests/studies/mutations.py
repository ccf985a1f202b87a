"""Thirty lines of perflab, each broken on purpose, and the tests that have to notice.

``python -m tests.studies.mutations`` tries them all, in ten minutes on two cores; numbers choose some: ``... 3 17``.
Each is tried in a copy of the repository: the line is replaced, and the tests named with it run until one fails. A
mutation that no test notices is a line that the suite does not hold; the command then exits with 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutation(NamedTuple):
    """A line that is broken, and the tests that have to fail for it."""

    what: str
    """The capability that breaks."""
    file: str
    """The file, below ``perflab/``."""
    old: str
    """A text that stands in the file once."""
    new: str
    tests: str
    """Arguments of pytest that choose the tests."""


MUTATIONS = (
    Mutation(
        "a peak that grew fails",
        "judging/exact.py",
        "    if after > allowed:",
        "    if after > 2 * allowed:",
        "tests/harness/test_exact.py",
    ),
    Mutation(
        "a count that is no longer taken is said",
        "judging/counts.py",
        "if len(new) < len(now) or not new:",
        "if not new:",
        "tests/harness/test_judge_counts.py tests/harness/test_counts.py",
    ),
    Mutation(
        "an out-of-memory error names memory in fragments",
        "judging/memory_texts.py",
        "found.cached_bytes > found.asked_bytes",
        "found.cached_bytes < found.asked_bytes",
        "tests/harness/test_out_of_memory.py",
    ),
    Mutation(
        "a smaller peak than the anchor's moves the anchor",
        "judging/kept.py",
        "memory.change.now * (1.0 + policy.memory_threshold) < memory.change.before",
        "memory.change.now * (1.0 + policy.memory_threshold) > memory.change.before",
        "tests/harness/test_anchor.py",
    ),
    Mutation(
        "stolen time excuses",
        "judging/doubts.py",
        "if steal > STEAL_SHARE and",
        "if steal < STEAL_SHARE and",
        "tests/harness/test_interference.py",
    ),
    Mutation(
        "two readings with an infinite ratio are ordered",
        "judging/statistics.py",
        "return math.inf if log_ratio > 0 else 0.0",
        "return math.inf if log_ratio < 0 else 0.0",
        "tests/harness/test_statistics.py",
    ),
    Mutation(
        "an interval of a median needs enough samples",
        "judging/statistics.py",
        "if low > 0 and high < many else None",
        "if low > 0 else None",
        "tests/harness/test_statistics.py",
    ),
    Mutation(
        "warm-up ends when two readings agree",
        "measure/stopping.py",
        "abs(reading - previous) <= AGREEMENT",
        "abs(reading - previous) >= AGREEMENT",
        "tests/harness/test_sampling.py",
    ),
    Mutation(
        "a sample has its least length",
        "measure/stopping.py",
        "    if sample_ns >= SAMPLE_TARGET_NS:",
        "    if sample_ns >= SAMPLE_TARGET_NS / 100:",
        "tests/harness/test_sampling.py",
    ),
    Mutation(
        "a failed part fails the merged run",
        "results/documents.py",
        "if any(part.exitstatus == FAILED for part in unexplained):",
        "if all(part.exitstatus == FAILED for part in unexplained):",
        "tests/harness/test_documents.py",
    ),
    Mutation(
        "a journal with a failed case is a failed run",
        "results/documents.py",
        "exitstatus=FAILED if failed else PASSED",
        "exitstatus=PASSED",
        "tests/harness/test_documents.py",
    ),
    Mutation(
        "a process ends whose parent has ended already",
        "processes/lifeline.py",
        "    if os.getppid() != parent:",
        "    if os.getppid() == -parent:",
        "tests/harness/test_processes.py",
    ),
    Mutation(
        "a child that promised to be silent for a while is waited for",
        "processes/peer.py",
        "min(time.monotonic() + message.for_s + self._silent_s, self._due_s)",
        "min(time.monotonic() - message.for_s + self._silent_s, self._due_s)",
        "tests/harness/test_processes.py",
    ),
    Mutation(
        "who holds a device is named, but not a worker of the same run",
        "running/case/locks.py",
        "return None if run and run == _run() else",
        "return None if run and run != _run() else",
        "tests/harness/test_device_lock.py",
    ),
    Mutation(
        "temporary files of others are left alone",
        "base/files.py",
        "if _TEMPORARY.fullmatch(one) and (name is None or",
        "if _TEMPORARY.fullmatch(one) and (name is not None or",
        "tests/harness/test_files.py",
    ),
    Mutation(
        "a budget that is exceeded fails, NaN included",
        "correctness/budget.py",
        "if not error <= getattr(limit, name)",
        "if error > getattr(limit, name)",
        "tests/harness/test_correctness_budget.py tests/harness/test_correctness_compare.py"
        " tests/harness/test_correctness_verify.py",
    ),
    Mutation(
        "a wrong dtype fails",
        "correctness/compare.py",
        "    if got.dtype != plain.dtype:",
        "    if got.dtype == torch.bool != plain.dtype:",
        "tests/harness/test_correctness_compare.py",
    ),
    Mutation(
        "a lone outlier is seen beside rows of zeros",
        "correctness/budget.py",
        "return torch.where(scales > 0, _rows(error).norm(dim=-1) / scales, 0.0)",
        "return torch.where(scales > 1, _rows(error).norm(dim=-1) / scales, 0.0)",
        "tests/harness/test_correctness_budget.py tests/harness/test_correctness_compare.py",
    ),
    Mutation(
        "control characters reach no terminal",
        "tables/escaping.py",
        'if character.isprintable() or unicodedata.category(character) == "Zs":',
        'if character.isascii() or unicodedata.category(character) == "Zs":',
        "tests/harness/test_escaping.py",
    ),
    Mutation(
        "baselines of another project's files are not pruned",
        "store/stale.py",
        "return Missing(stale=sorted(entries) if is_ours else [])",
        "return Missing(stale=sorted(entries))",
        "tests/harness/test_stale.py tests/plugin/test_stale.py",
    ),
    Mutation(
        "a prediction by another PyTorch is not compared",
        "predicted/judge/judge.py",
        "    if now.torch != baseline.torch:",
        "    if now.torch < baseline.torch:",
        "tests/harness/test_predicted_judge.py",
    ),
    Mutation(
        "a kernel of another GPU or compiler is not compared",
        "compiled/judge.py",
        "return Judgement(verdict=Verdict.INCOMPARABLE, reasons=foreign)",
        "return Judgement(verdict=Verdict.OK, reasons=foreign)",
        "tests/harness/test_compiled_judge.py",
    ),
    Mutation(
        "the largest place of a snapshot comes first",
        "snapshots/analysis.py",
        "return sorted(same, key=lambda together: -together",
        "return sorted(same, key=lambda together: together",
        "tests/harness/test_snapshot_analysis.py tests/harness/test_snapshot_reading.py",
    ),
    Mutation(
        "the highest level is the peak",
        "profiles/peak.py",
        "        if level > highest:",
        "        if level >= highest:",
        "tests/harness/test_peaks.py",
    ),
    Mutation(
        "a series that creeps is found",
        "history/change_points.py",
        "return exp(rise) if is_far and",
        "return exp(rise) if not is_far and",
        "tests/harness/test_change_points.py -k creep",
    ),
    Mutation(
        "a renamed case goes on in its history",
        "history/telling.py",
        "if len(ended) == len(begun) == 1:",
        "if len(ended) == len(begun) == 2:",
        "tests/harness/test_history_text.py",
    ),
    Mutation(
        "--fail fails for a longer latency",
        "report/command.py",
        "latency.ratio > 1.0 and LATENCY in",
        "latency.ratio > 9.0 and LATENCY in",
        "tests/harness/test_report.py tests/plugin/test_reporting.py tests/harness/test_contents.py",
    ),
    Mutation(
        "a side that hangs is told apart from a run that is over",
        "processes/peer.py",
        "if limit_s < until_s - now_s:",
        "if limit_s >= until_s - now_s:",
        "tests/harness/test_processes.py",
    ),
    Mutation(
        "a case without a commit is not settled by turns",
        "measured/run/settle.py",
        "            if code.commit is None:",
        "            if code.commit == '':",
        "tests/plugin/test_settling.py",
    ),
    Mutation(
        "units divide by the right power",
        "units.py",
        "    if value >= 99.95:",
        "    if value >= 9.995:",
        "tests/harness/test_units.py",
    ),
)


def main(arguments: Sequence[str]) -> int:
    """Try the mutations, all or those whose numbers are given; return 1 if one was not noticed."""
    chosen = [int(one) for one in arguments] or range(1, len(MUTATIONS) + 1)
    missed = [number for number in chosen if not noticed(MUTATIONS[number - 1], number)]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} noticed" + (f"; not noticed: {missed}" if missed else ""))
    return 1 if missed else 0


def noticed(mutation: Mutation, number: int) -> bool:
    """Whether the tests of a mutation fail when it is made. Prints a line that says so.

    Raises:
        LookupError: the line is not in its file once: the list is behind the code.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "main"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.egg-info"))
        mutate(copy / "perflab" / mutation.file, mutation)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider"]
        command += ["-o", "faulthandler_timeout=120", "-o", "faulthandler_exit_on_timeout=true"]  # a hang is noticed
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        done = subprocess.run(
            [*command, *mutation.tests.split()], cwd=copy, env=environment, capture_output=True, text=True
        )
    failed = next((line for line in done.stdout.splitlines() if line.startswith("FAILED")), "")
    print(
        f"{number:2} {'noticed' if failed else 'NOT NOTICED'}: {mutation.what} ({failed or done.stdout[-200:]})",
        flush=True,
    )
    return bool(failed)


def mutate(path: Path, mutation: Mutation) -> None:
    """Replace the mutation's text in a file.

    Raises:
        LookupError: the text is not in the file once.
    """
    text = path.read_text(encoding="utf-8")
    if text.count(mutation.old) != 1:
        raise LookupError(f"{mutation.file} has {text.count(mutation.old)} times: {mutation.old}")
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
