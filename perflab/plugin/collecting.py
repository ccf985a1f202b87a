"""The collecting side: one process, the controller under pytest-xdist. Journals, saves and shows the results.

Of each case the last result counts: a plugin that runs a test again reports it again. Cases stand in the order in
which they were collected, whichever worker was first.
"""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

import perflab
from perflab.data import speakable
from perflab.documents import SCHEMA, in_order, write_document
from perflab.errors import BaselineError, PerflabError
from perflab.gate.beside import beside_others
from perflab.gate.exact_store import split
from perflab.gate.kernel_store import KernelStore
from perflab.gate.noisy import Fitness, fitness
from perflab.gate.own_history import Reading
from perflab.gate.predicted_store import PredictedStore
from perflab.gate.stale import Collection
from perflab.plugin.accept import command_without_limits
from perflab.plugin.benchmark import add_to_benchmark_session, spare_second_table
from perflab.plugin.commit import current_commit
from perflab.plugin.findings import findings_of
from perflab.plugin.folder import baselines_of, own_folder
from perflab.plugin.history import history_notes
from perflab.plugin.journal import Journal
from perflab.plugin.kernels import is_to_be_saved, save_kernels
from perflab.plugin.noting import AllNotes
from perflab.plugin.predictions import save_predictions
from perflab.plugin.prune import Stale
from perflab.plugin.replicates import Replicates, noisy_notes
from perflab.plugin.saving import Succession
from perflab.plugin.settings import Settings
from perflab.plugin.stash import AGAINST
from perflab.plugin.total_budget import TotalBudget
from perflab.records import Document, Entry, Judgement, Policy, Record, Replicate, Result, Verdict, changed
from perflab.report.escaping import lines_of, one_line
from perflab.report.side_by_side import parameter_names
from perflab.report.summary import summary
from perflab.report.table import short_name

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
        self._journal = Journal(config.rootpath, settings.baselines)
        self._notes: list[str] = []
        self._stale: list[str] = []
        self._findings: dict[str, list[str]] = {}
        self._refused: dict[str, Entry] = {}
        """Times that were to be saved, and are too noisy."""
        self._budget = TotalBudget(settings.total_budget_s)
        self._baselines = baselines_of(config, settings)

    def take(self, report: pytest.TestReport) -> None:
        """Take a perf case's result at once, and journal it before anything else can go wrong.

        A report that holds none is pytest-xdist's own, of a case that took its worker down.
        """
        plain = getattr(report, "perflab", None)
        if plain is not None:
            result = msgspec.convert(plain, Result)
        else:
            crashed = Judgement(verdict=Verdict.FAILED, reasons=["its worker process crashed"])
            result = Result(case=report.nodeid, record=None, judgement=crashed)
        if report.failed and result.failure is None:
            # Not report.longreprtext: that one begins with the worker's name.
            text = str(report.longrepr or "the test failed").strip()
            result = msgspec.structs.replace(result, failure=speakable(text))
        self._results[result.case] = result
        self.keep(result)
        add_to_benchmark_session(self._config, result)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Save what is to be saved. Runs after Ctrl-C too, with what was finished by then."""
        self._results = {result.case: result for result in in_order(self._results, self._noted.cases)}
        asked = self._config.getoption("perf_json") is not None and not self._config.option.collectonly
        if self._results or asked:  # an ini key alone writes no file of nothing over the last run's
            self._finish(session, exitstatus)
        if self._results or self._settings.prune:
            self._look_for_stale(session, exitstatus)
        self._journal.close()

    def _finish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._journal.problem is not None:
            self._notes.append(self._journal.problem)
        try:
            self._save(interrupted=exitstatus == pytest.ExitCode.INTERRUPTED)
        except KeyboardInterrupt:  # while replicates were measured; what there was is saved
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        except BaselineError as error:
            self._notes += [str(error), *self._where_results_stand()]
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        if self._refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        try:
            self._findings = findings_of(self._config, list(self._results.values()), self._notes.append)
        except KeyboardInterrupt:
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        try:
            self._write_json(int(session.exitstatus))
        except OSError as error:
            self._notes.append(
                f"cannot write {self._settings.json}: {error.strerror}\n  -> name another file with --perf-json=FILE"
            )
            self._notes += self._where_results_stand()
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    def _where_results_stand(self) -> list[str]:
        return [f"what was measured stands in {self._journal.place}"] if self._journal.place is not None else []

    def _look_for_stale(self, session: pytest.Session, exitstatus: int) -> None:
        """Report stored baselines whose cases are gone; remove them if that was asked for."""
        collections = [None if seen is None else msgspec.convert(seen, Collection) for seen in self._noted.seen]
        stale = Stale(self._config, self._settings, collections)
        environments = [result.record.environment for result in self._results.values() if result.record is not None]
        if not self._settings.prune:
            self._stale += stale.report(environments)
            return
        try:
            self._stale += stale.prune(environments, exitstatus)
        except PerflabError as error:
            self._notes.append(str(error))
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        """Show the table."""
        out = terminalreporter
        if not self._results:
            for note in [*self._notes, *self._stale]:
                out.write_line(lines_of(note))
            return
        spare_second_table(self._config)
        out.ensure_newline()
        out.section("perf", sep="=")
        width = max(80, out._tw.fullwidth)
        self._note_unknown_parameter()
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

    def _note_unknown_parameter(self) -> None:
        wanted, results = self._settings.side_by_side, list(self._results.values())
        if wanted is not None and not any(result.side_by_side for result in results):
            known = ", ".join(parameter_names(results)) or "none"
            self._notes.append(f"--perf-side-by-side={wanted}: no case has such a parameter; there are: {known}")

    def keep_at_the_end(self, reports: Sequence[pytest.TestReport]) -> list[str]:
        """Take the last results of a run whose process has to end now, and write what there is. Gives what to say."""
        for report in reports:
            self.take(report)
        self._results = {result.case: result for result in in_order(self._results, self._noted.cases)}
        with contextlib.suppress(OSError):
            self._write_json(int(pytest.ExitCode.TESTS_FAILED))
        place = self._journal.place
        where = [f"the results so far stand in {place}"] if place is not None else []
        return [f"perf: {line}" for line in [*where, *self._notes]]

    # --- saving ---------------------------------------------------------------------------------------------

    def _save(self, *, interrupted: bool) -> None:
        try:
            self._save_what_was_asked(interrupted=interrupted)
        finally:
            if self._settings.against is None and self._settings.check != "exact":
                self._keep_times()

    def _save_what_was_asked(self, *, interrupted: bool) -> None:
        others = self._save_kernels() + self._save_predictions()
        exacts, times = self._cases_to_save()
        if not exacts and not times:
            if self._settings.reason is not None and not others:
                self._notes.append("nothing was saved, so the reason given stands nowhere")
            return
        chosen = [self._results[case] for case in dict.fromkeys([*exacts, *times])]
        records = {result.case: result.record for result in chosen if result.record is not None}
        commit = current_commit(self._config.rootpath, self._settings.baselines)
        replicates = Replicates(self._config, chosen, self._settings.replicates, self._budget, self._notes)
        stopped: KeyboardInterrupt | None = None
        if not interrupted:
            try:
                replicates.take()
            except KeyboardInterrupt as error:
                stopped = error
        now = _now()
        fit = replicates.fitness()
        entries = {
            case: _entry(record, replicates.kept(case), now, commit, fit.get(case)) for case, record in records.items()
        }
        accepts = self._settings.noisy == "accept"
        self._refused = {case: entries[case] for case in times if case in fit and fit[case].is_blind and not accepts}
        times = [case for case in times if case not in self._refused]
        names = {result.case: result.identity for result in chosen}
        succession = Succession(chosen, self._settings.reason)
        others_have = {case: self._baselines.exact.of(names[case], records[case].environment) for case in exacts}
        paths = self._baselines.save(
            {names[case]: entries[case] for case in exacts},
            {names[case]: entries[case] for case in times},
            succession.exact,
            succession.times,
        )
        saved = [case for case in entries if case not in self._refused]
        for case in saved:
            self._results[case] = msgspec.structs.replace(self._results[case], saved=True)
        if paths:
            written = ", ".join(_relative(path, self._config) for path in paths)
            what = f"{len(saved)} baseline{'s' * (len(saved) != 1)}" if saved else "memory and counts alone"
            self._notes.append(f"saved {what} to {written}")
        self._notes += noisy_notes(
            {short_name(case): fit[case] for case in self._refused},
            {short_name(case): fit[case] for case in times if case in fit and not fit[case].is_calm},
        )
        self._notes += beside_others(
            {
                short_name(case): (there, here)
                for case, there in others_have.items()
                if there is not None and (here := split(entries[case]).exact) is not None
            }
        )
        self._notes += succession.notes()
        if interrupted or stopped is not None:
            least = replicates.least
            many = "one replicate each" if least == 1 else f"{least} replicates each"
            self._notes.append(f"interrupted: these baselines have {many}, and know less of their noise")
        if stopped is not None:
            raise stopped

    def _save_kernels(self) -> int:
        settings = self._settings
        chosen = {
            result.case: result
            for result in self._results.values()
            if is_to_be_saved(result, update=settings.update, update_new=settings.update_new)
        }
        if chosen:
            commit = current_commit(self._config.rootpath, settings.baselines)
            store = KernelStore(settings.baselines)
            paths = save_kernels(store, chosen.values(), commit=commit, reason=settings.reason)
            self._results |= {case: msgspec.structs.replace(one, saved=True) for case, one in chosen.items()}
            written = ", ".join(_relative(path, self._config) for path in paths)
            self._notes.append(f"saved {len(chosen)} compiled kernel{'s' * (len(chosen) != 1)} to {written}")
        return len(chosen)

    def _save_predictions(self) -> int:
        chosen = {
            result.case: result
            for result in self._results.values()
            if result.predicted is not None and self._asks_to_be_saved(result)
        }
        if chosen:
            commit = current_commit(self._config.rootpath, self._settings.baselines)
            store = PredictedStore(self._settings.baselines)
            paths = save_predictions(store, chosen.values(), commit=commit, reason=self._settings.reason)
            self._results |= {case: msgspec.structs.replace(one, saved=True) for case, one in chosen.items()}
            written = ", ".join(_relative(path, self._config) for path in paths)
            self._notes.append(f"saved {len(chosen)} prediction{'s' * (len(chosen) != 1)} to {written}")
        return len(chosen)

    def _cases_to_save(self) -> tuple[list[str], list[str]]:
        """The measured cases of which exact quantities, and times, are to be saved."""
        measured = [result for result in self._results.values() if result.record is not None]
        if self._settings.update:
            return [result.case for result in measured], [result.case for result in measured]
        if not self._settings.update_new:
            return [], []
        held = [result for result in measured if result.judgement.verdict is not Verdict.REGRESSED]
        here = [(result, result.record.environment) for result in held if result.record is not None]
        return (
            [one.case for one, environment in here if not self._baselines.has_exact(one.identity, environment)],
            [one.case for one, environment in here if not self._baselines.has_times(one.identity, environment)],
        )

    def _asks_to_be_saved(self, result: Result) -> bool:
        if self._settings.update:
            return True
        without = result.judgement.verdict in (Verdict.NEW, Verdict.INCOMPARABLE, Verdict.OOM)
        return self._settings.update_new and without

    def _keep_times(self) -> None:
        """Have the next run on this machine compare times, where none are committed."""
        runs, now = {}, _now()
        for result in self._results.values():
            record, verdict = result.record, result.judgement.verdict
            if record is None or record.summary is None or result.saved:
                continue
            if self._baselines.has_times(result.identity, record.environment):
                continue
            replicates = record.fresh or [record.summary]
            found = fitness(replicates, record.environment, result.policy or Policy())
            entry = self._refused.get(result.case) or _entry(record, replicates, now, None, found)
            runs[result.identity] = Reading(entry, result.policy or Policy(), is_worse=verdict is Verdict.REGRESSED)
        if not runs:
            return
        commit = current_commit(self._config.rootpath, self._settings.baselines)
        runs = {case: replace(one, entry=changed(one.entry, commit=commit)) for case, one in runs.items()}
        try:
            own_folder(self._config.rootpath)
            steps = self._baselines.keep(runs)
        except (BaselineError, OSError) as error:
            self._notes.append(f"times were not kept for the next run here: {error}")
            return
        self._notes += history_notes(steps, is_named=self._settings.machine is not None)

    # --- what stays behind ----------------------------------------------------------------------------------

    def keep(self, result: Result) -> None:
        """Add a result to the journal: of each case the last one counts."""
        self._journal.write(result)

    def _write_json(self, exitstatus: int) -> None:
        if self._settings.json is None:
            return
        write_document(self._document(exitstatus), self._settings.json)
        self._notes.append(f"wrote {_relative(self._settings.json, self._config)}")

    def _document(self, exitstatus: int) -> Document:
        against = self._config.pluginmanager.getplugin(AGAINST)
        return Document(
            schema=SCHEMA,
            perflab=perflab.__version__,
            created=datetime.now(UTC),
            exitstatus=exitstatus,
            baselines=None if against is not None else _relative(self._settings.baselines, self._config),
            threshold=self._settings.threshold,
            results=list(self._results.values()),
            collected=self._noted.cases,
            command=command_without_limits(self._config),
            total_budget_s=self._settings.total_budget_s,
            findings=self._findings,
            other_failures=list(self._noted.failures),
            preface=against.notes if against is not None else [],
        )


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _entry(record: Record, replicates: list[Replicate], now: str, commit: str | None, found: Fitness | None) -> Entry:
    return Entry(
        environment=record.environment,
        recorded=now,
        replicates=replicates,
        parameters=record.parameters,
        out_of_memory=record.out_of_memory,
        commit=commit,
        noisy=found.marks if found is not None else [],
    )


def _relative(path: Path, config: pytest.Config) -> str:
    try:
        return str(path.relative_to(config.invocation_params.dir))
    except ValueError:
        return str(path)
