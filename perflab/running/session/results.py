"""Collects the results of all processes in one process, and journals, saves and shows the results.

The last result of a case counts, since a plugin that runs a test again reports it again. Cases are in the order in
which they were collected, whichever worker finished first. Findings of studies are asked of a conftest's hook.
"""

from __future__ import annotations

import contextlib
import errno
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest

import perflab
from perflab.base.data import changed, speakable
from perflab.base.errors import BaselineError, PerflabError
from perflab.base.git import current_commit, repository_page
from perflab.noting import AllNotes
from perflab.report.summary import summary
from perflab.results.documents import SCHEMA, in_order, write_document
from perflab.results.records import Judgement, Verdict
from perflab.results.result import Document, Result, by_study, parameter_names
from perflab.running.config.command_line import command_without_limits
from perflab.running.session.journal import Journal, add_to_benchmark_session, spare_second_table
from perflab.running.session.prune import Stale
from perflab.settings.settings import Settings, TotalBudget
from perflab.store.stale import Collection
from perflab.tables.escaping import lines_of, one_line
from perflab.tiers.interface import tiers
from perflab.tiers.saving import Saving, shown

_COLOURS = {
    Verdict.OK: "green",
    Verdict.IMPROVED: "green",
    Verdict.REGRESSED: "red",
    Verdict.FAILED: "red",
    Verdict.OOM: "red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.INCOMPARABLE: "yellow",
}


class Collected:
    """Receives each case's result from its report, whichever process ran it."""

    def __init__(self, config: pytest.Config, settings: Settings, noted: AllNotes) -> None:
        self._config = config
        self._settings = settings
        self._noted = noted
        self._results: dict[str, Result] = {}
        self._journal = Journal(config.rootpath, settings.baselines, settings.json)
        self._notes: list[str] = []
        self._stale: list[str] = []
        self._gone: list[str] = []
        self._findings: dict[str, list[str]] = {}
        self.preface: list[str] | None = None
        """The lines above the table of a run that compares with another version instead of baselines; else None."""
        self._budget = TotalBudget(settings.total_budget_s)

    def take(self, report: pytest.TestReport) -> None:
        """Take a perf case's result from its report, and journal the result at once, before anything else can fail.

        A report without a result is pytest-xdist's own, about a case that crashed its worker.
        """
        plain = getattr(report, "perflab", None)
        if plain is not None:
            result = msgspec.convert(plain, Result)
        else:
            crashed = Judgement(verdict=Verdict.FAILED, reasons=["its worker process crashed"])
            result = Result(case=self._noted.case_of(report), judgement=crashed)
        if report.failed and result.failure is None:
            # Not report.longreprtext, which begins with the worker's name.
            text = str(report.longrepr or "the test failed").strip()
            result = changed(result, failure=speakable(text))
        self._results[result.case] = result
        self.keep(result)
        add_to_benchmark_session(self._config, result)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Save baselines and write results, as the options ask; after Ctrl-C too, with the cases finished by then."""
        self._results = {result.case: result for result in in_order(self._results, self._noted.cases)}
        asked = self._config.getoption("perf_json") is not None and not self._config.option.collectonly
        try:
            if self._results or asked:  # an ini key alone must not replace the last run's file by an empty one
                self._finish(session, exitstatus)
            elif self._settings.prune:
                self._look_for_stale(session, exitstatus)
        except OSError as error:  # if no file can be opened, the modules that make a table cannot be loaded either
            self._notes += [f"perf: nothing could be saved: {error.strerror or error}", *self._where_results_stand()]
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._results = {}
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        self._journal.close()

    def _finish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._journal.problem is not None:
            self._notes.append(self._journal.problem)
        refused = False
        try:
            refused = self._save(exitstatus == pytest.ExitCode.INTERRUPTED, stopped=bool(session.shouldfail))
        except KeyboardInterrupt:  # while replicates were measured; finished results are saved
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        except BaselineError as error:
            self._notes += [str(error), *self._where_results_stand()]
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        if refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        try:
            self._findings = findings_of(self._config, list(self._results.values()), self._notes.append)
        except KeyboardInterrupt:
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        if self._results or self._settings.prune:
            self._look_for_stale(session, exitstatus)
        try:
            self._write_json(int(session.exitstatus))
        except OSError as error:
            self._notes.append(
                f"cannot write {self._settings.json}: {error.strerror}\n  -> name another file with --perf-json=FILE"
            )
            self._notes += self._where_results_stand()
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    def _where_results_stand(self) -> list[str]:
        return [f"the results are in {self._journal.place}"] if self._journal.place is not None else []

    def _look_for_stale(self, session: pytest.Session, exitstatus: int) -> None:
        """Report stored baselines whose cases are gone; with ``--perf-prune``, remove these baselines."""
        collections = [None if seen is None else msgspec.convert(seen, Collection) for seen in self._noted.seen]
        stale = Stale(self._config, self._settings, collections)
        environments = [result.record.environment for result in self._results.values() if result.record is not None]
        compared = {one.judgement.moved_from for one in self._results.values() if not one.saved}
        if not self._settings.prune:
            self._stale += stale.report(environments, compared)
            self._gone = list(stale.cases)
            return
        try:
            self._stale += stale.prune(environments, exitstatus, compared)
        except PerflabError as error:
            self._notes.append(str(error))
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        """Print the table of results, the notes and the stale baselines."""
        out = terminalreporter
        if not self._results:
            for note in [*self._notes, *self._stale]:
                out.write_line(lines_of(note))
            return
        spare_second_table(self._config)
        out.ensure_newline()
        out.section("perf", sep="=")
        width = max(80, out._tw.fullwidth)
        wanted, results = self._settings.side_by_side, list(self._results.values())
        if wanted is not None and not any(result.side_by_side for result in results):
            known = ", ".join(parameter_names(results)) or "none"
            self._notes.append(f"--perf-side-by-side={wanted}: no case has such a parameter; there are: {known}")
        view = replace(self._settings.view, every=self._config.get_verbosity() > 0)
        for line in summary(self._document(int(exitstatus)), width, self._notes, view=view):
            colour = _COLOURS.get(line.verdict) if line.verdict is not None else None
            if colour is None:
                out.write_line(line.text)
                continue
            at = line.text.rindex("  ") + 2
            out.write(line.text[:at])
            out.write_line(line.text[at:], **{colour: True})
        for note in self._stale:
            for text in textwrap.wrap(
                one_line(note), width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            ):
                out.write_line(text)

    def keep_at_the_end(self, reports: Sequence[pytest.TestReport]) -> list[str]:
        """Take the last results of a run whose process must end now, and write all results; return lines to print."""
        for report in reports:
            self.take(report)
        self._results = {result.case: result for result in in_order(self._results, self._noted.cases)}
        with contextlib.suppress(OSError):
            self._write_json(int(pytest.ExitCode.TESTS_FAILED))
        place = self._journal.place
        where = [f"the results so far are in {place}"] if place is not None else []
        return [f"perf: {line}" for line in [*where, *self._notes]]

    def places(self) -> tuple[str | None, str | None]:
        """Return the paths of the journal and of the results file; None for a file that the run does not have."""
        with contextlib.suppress(OSError):  # reported when the first case is journalled
            self._journal.begin()
        journal, results = self._journal.path, self._settings.json
        return (None, None) if journal is None else (str(journal), None if results is None else str(results))

    def _save(self, interrupted: bool, *, stopped: bool) -> bool:
        """Save the results that options ask to save; return whether saving a result was refused.

        Afterwards the rows of tables take turns, unless the run was ``interrupted`` or ``stopped``.

        Raises:
            BaselineError: an existing file cannot be read, or a file cannot be written.
            KeyboardInterrupt: the user interrupted a measurement; finished results are saved.
        """
        before = dict(self._results)
        saving = Saving(self._config, self._settings, self._results, self._budget, interrupted, self._notes)
        try:
            for one in reversed(tiers()):  # the tier that measures further replicates comes last
                one.save(saving)
            if self._settings.reason is not None and not saving.chosen:
                saving.notes.append("nothing was saved, so --perf-reason was not stored either")
            for one in tiers() if not (interrupted or stopped) else ():
                one.take_turns(saving)
        finally:
            for case, result in saving.results.items():
                if result is not before.get(case):
                    self.keep(result)
            self._results = saving.results
        return saving.fails

    # --- what stays behind ----------------------------------------------------------------------------------

    def keep(self, result: Result) -> None:
        """Append a result to the journal, in which the last result of a case counts."""
        self._journal.write(result)

    def _write_json(self, exitstatus: int) -> None:
        if self._settings.json is None:
            return
        commit = current_commit(self._config.rootpath, self._settings.baselines, self._settings.json)
        repository = repository_page(self._config.rootpath) if commit is not None else None
        written = changed(self._document(exitstatus), commit=commit, repository=repository)
        write_document(written, self._settings.json)
        self._notes.append(f"wrote {shown(self._settings.json, self._config)}")

    def _document(self, exitstatus: int) -> Document:
        return Document(
            schema=SCHEMA,
            perflab=perflab.__version__,
            created=datetime.now(UTC),
            exitstatus=exitstatus,
            baselines=None if self.preface is not None else shown(self._settings.baselines, self._config),
            threshold=self._settings.threshold,
            results=list(self._results.values()),
            collected=self._noted.cases,
            command=command_without_limits(self._config),
            total_budget_s=self._settings.total_budget_s,
            findings=self._findings,
            other_failures=list(self._noted.failures),
            unreached=self._noted.unreached(),
            preface=self.preface or [],
            stale=self._gone,
        )


HOOK = "pytest_perf_findings"


def findings_of(config: pytest.Config, results: Sequence[Result], note: Callable[[str], None]) -> dict[str, list[str]]:
    """Return the lines of findings by study; studies without findings are left out.

    Args:
        config: the configuration in which the hook's implementations are registered.
        results: the run's results, in the order of collection.
        note: called with a message for each study whose hook failed.
    """
    found: dict[str, list[str]] = {}
    for study, cases in by_study(results).items():
        try:
            lines = _lines(config.hook.pytest_perf_findings(study=study, results=cases))
        except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
            note(f"{HOOK}: no findings of study {study!r}: {type(error).__name__}: {error}")
            continue
        if lines:
            found[study] = lines
    return found


def _lines(said: object) -> list[str]:
    """Return the lines of all implementations of the hook, one after another.

    Raises:
        TypeError: an implementation returned something other than a list of texts, or None.
    """
    lines: list[str] = []
    for one in said if isinstance(said, list) else [said]:
        if not isinstance(one, list | tuple) or not all(isinstance(line, str) for line in one):
            raise TypeError(f"an implementation returned {one!r}; wanted a list of str, or None")
        lines += [speakable(str(line)) for line in one]
    return lines
