"""The collecting side: one process, the controller under pytest-xdist. Journals, saves and shows the results.

Of each case the last result counts: a plugin that runs a test again reports it again. Cases stand in the order in
which they were collected, whichever worker was first.
"""

from __future__ import annotations

import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perflab
from perflab.documents import SCHEMA, in_order, write_document
from perflab.errors import BaselineError, FreshProcessError, PerflabError
from perflab.gate.kernel_store import KernelStore
from perflab.gate.predicted_store import PredictedStore
from perflab.gate.stale import Collection
from perflab.gate.store import BaselineStore
from perflab.measure.measurement import replicate_of
from perflab.plugin.benchmark import add_to_benchmark_session, spare_second_table
from perflab.plugin.commit import current_commit
from perflab.plugin.findings import findings_of
from perflab.plugin.folder import own_folder
from perflab.plugin.fresh import JobResult, measure_fresh
from perflab.plugin.kernels import is_to_be_saved, save_kernels
from perflab.plugin.order import CaseList
from perflab.plugin.predictions import save_predictions
from perflab.plugin.prune import Stale
from perflab.plugin.saving import Succession
from perflab.plugin.seen import SEEN, SEEN_BY_WORKER
from perflab.plugin.settings import Settings
from perflab.plugin.stash import AGAINST
from perflab.plugin.turn import device_turn
from perflab.records import Document, Entry, Judgement, Record, Replicate, Result, Verdict
from perflab.report.side_by_side import parameter_names
from perflab.report.summary import summary

_KEPT_JOURNALS = 20
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

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._results: dict[str, Result] = {}
        self._other_failures: dict[str, None] = {}
        self._cases = CaseList(config)
        self._journal: Path | None = None
        self._notes: list[str] = []
        self._stale: list[str] = []
        self._findings: dict[str, list[str]] = {}
        self._collections: list[Collection | None] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Ask a worker of pytest-xdist to tell which perf cases there are."""
        self._cases.ask(node)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a result at once, and journal it before anything else can go wrong."""
        if report.when == "setup":  # a test that is run again begins anew
            self._other_failures.pop(report.nodeid, None)
        plain = getattr(report, "perflab", None)
        if plain is not None:
            result = msgspec.convert(plain, Result)
        elif report.when not in ("setup", "call", "teardown") and report.nodeid in self._cases.collected():
            crashed = Judgement(verdict=Verdict.FAILED, reasons=["its worker process crashed"])
            result = Result(case=report.nodeid, record=None, judgement=crashed)
        else:
            if report.failed:
                self._other_failures[report.nodeid] = None
            return
        if report.failed:
            # Not report.longreprtext: that one begins with the worker's name.
            text = str(report.longrepr or "the test failed").strip()
            result = msgspec.structs.replace(result, failure=text.encode("utf-8", "replace").decode("utf-8"))
        self._results[result.case] = result
        self._write_journal(result)
        add_to_benchmark_session(self._config, result)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker of pytest-xdist has collected; one that crashed cannot say."""
        plain = getattr(node, "workeroutput", {}).get(SEEN_BY_WORKER)
        self._collections.append(msgspec.convert(plain, Collection) if plain is not None else None)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be collected: the run fails for it."""
        if report.failed:
            self._other_failures[report.nodeid] = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Save what is to be saved. Runs after Ctrl-C too, with what was finished by then."""
        self._cases.forget()
        self._results = {result.case: result for result in in_order(self._results, self._cases.collected())}
        asked = self._config.getoption("perf_json") is not None and not self._config.option.collectonly
        if self._results or asked:  # an ini key alone writes no file of nothing over the last run's
            self._finish(session, exitstatus)
        if self._results or self._settings.prune:
            self._look_for_stale(session, exitstatus)

    def _finish(self, session: pytest.Session, exitstatus: int) -> None:
        try:
            self._save(interrupted=exitstatus == pytest.ExitCode.INTERRUPTED)
        except KeyboardInterrupt:  # while replicates were measured; what there was is saved
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        except BaselineError as error:
            self._notes.append(str(error))
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        try:
            self._findings = findings_of(self._config, list(self._results.values()), self._notes.append)
        except KeyboardInterrupt:
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        try:
            self._write_json(int(session.exitstatus))
        except OSError as error:
            self._notes.append(
                f"cannot write {self._settings.json}: {error.strerror}\n"
                "  -> name another file with --perf-json=FILE; the results stand in .perflab/runs/"
            )
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    def _look_for_stale(self, session: pytest.Session, exitstatus: int) -> None:
        """Report stored baselines whose cases are gone; remove them if that was asked for."""
        collections = self._collections or [self._config.stash[SEEN].collection]
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
                out.write_line(note)
            return
        spare_second_table(self._config)
        out.ensure_newline()
        out.section("perf", sep="=")
        width = max(80, out._tw.fullwidth)
        self._note_unknown_parameter()
        for line in summary(self._document(int(exitstatus)), width, self._notes):
            colour = _COLOURS.get(line.verdict) if line.verdict is not None else None
            if colour is None:
                out.write_line(line.text)
                continue
            at = line.text.rindex("  ") + 2
            out.write(line.text[:at])
            out.write_line(line.text[at:], **{colour: True})
        for note in self._stale:
            for text in textwrap.wrap(
                note, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            ):
                out.write_line(text)

    def _note_unknown_parameter(self) -> None:
        wanted, results = self._settings.side_by_side, list(self._results.values())
        if wanted is not None and not any(result.side_by_side for result in results):
            known = ", ".join(parameter_names(results)) or "none"
            self._notes.append(f"--perf-side-by-side={wanted}: no case has such a parameter; there are: {known}")

    # --- saving ---------------------------------------------------------------------------------------------

    def _save(self, *, interrupted: bool) -> None:
        others = self._save_kernels() + self._save_predictions()
        chosen = [result for result in self._results.values() if self._is_to_be_saved(result)]
        if not chosen:
            if self._settings.reason is not None and not others:
                self._notes.append("nothing was saved, so the reason given stands nowhere")
            return
        records = {result.case: result.record for result in chosen if result.record is not None}
        commit = current_commit(self._config.rootpath, self._settings.baselines)
        replicates = {case: [record.summary] for case, record in records.items() if record.summary is not None}
        stopped: KeyboardInterrupt | None = None
        if replicates and not interrupted:
            try:
                self._add_fresh(replicates, {case: record.device for case, record in records.items()})
            except KeyboardInterrupt as error:
                stopped = error
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        entries = {case: _entry(record, replicates.get(case, []), now, commit) for case, record in records.items()}
        succession = Succession(chosen, self._settings.reason)
        paths = BaselineStore(self._settings.baselines).save(entries, succession)
        for case in entries:
            self._results[case] = msgspec.structs.replace(self._results[case], saved=True)
        written = ", ".join(_relative(path, self._config) for path in paths)
        self._notes.append(f"saved {len(entries)} baseline{'s' * (len(entries) != 1)} to {written}")
        self._notes += succession.notes()
        if interrupted or stopped is not None:
            least = min([len(group) for group in replicates.values()], default=0)
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

    def _is_to_be_saved(self, result: Result) -> bool:
        return result.record is not None and self._asks_to_be_saved(result)

    def _asks_to_be_saved(self, result: Result) -> bool:
        if self._settings.update:
            return True
        without = result.judgement.verdict in (Verdict.NEW, Verdict.INCOMPARABLE, Verdict.OOM)
        return self._settings.update_new and without

    def _add_fresh(self, replicates: dict[str, list[Replicate]], devices: dict[str, str]) -> None:
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        for number in range(2, self._settings.replicates + 1):
            if reporter is not None:
                if reporter._tw.width_of_current_line:
                    reporter._tw.line()
                many = f"{len(replicates)} case{'s' * (len(replicates) != 1)}"
                reporter.write_line(f"perf: replicate {number} of {self._settings.replicates} ({many})")
            found: dict[str, JobResult] = {}
            try:
                for device in sorted(set(devices.values())):
                    cases = [case for case in replicates if devices[case] == device]
                    with device_turn(device, self._notes.append):
                        found |= measure_fresh(self._config, cases, device)
            except FreshProcessError as error:
                self._notes.append(f"baselines with fewer replicates: {error}")
                return
            for case, result in found.items():
                if result.measurement is not None:
                    replicates[case].append(replicate_of(result.measurement))
            missing = [case for case in replicates if case not in found]
            if missing:
                self._notes.append(f"a fresh process gave no replicate of {', '.join(missing)}")

    # --- what stays behind ----------------------------------------------------------------------------------

    def _write_journal(self, result: Result) -> None:
        try:
            if self._journal is None:
                runs = own_folder(self._config.rootpath) / "runs"
                runs.mkdir(exist_ok=True)
                for old in sorted(runs.glob("*.jsonl"))[: -(_KEPT_JOURNALS - 1)]:
                    old.unlink()
                self._journal = runs / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S-%f}.jsonl"
            with self._journal.open("ab") as file:
                file.write(msgspec.json.encode(result) + b"\n")
        except OSError as error:
            note = f"no journal of this run could be kept in .perflab/: {error.strerror}"
            if note not in self._notes:
                self._notes.append(note)

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
            collected=self._cases.collected(),
            findings=self._findings,
            other_failures=list(self._other_failures),
            preface=against.notes if against is not None else [],
        )


def _entry(record: Record, replicates: list[Replicate], now: str, commit: str | None) -> Entry:
    return Entry(
        environment=record.environment,
        recorded=now,
        replicates=replicates,
        parameters=record.parameters,
        out_of_memory=record.out_of_memory,
        commit=commit,
    )


def _relative(path: Path, config: pytest.Config) -> str:
    try:
        return str(path.relative_to(config.invocation_params.dir))
    except ValueError:
        return str(path)
