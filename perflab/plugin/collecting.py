"""The collecting side: one process, the controller under pytest-xdist. Journals, saves and shows the results."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

import perflab
from perflab.environment import slug
from perflab.errors import BaselineError, FreshProcessError
from perflab.gate.store import BaselineStore
from perflab.measure.measurement import replicate_of
from perflab.plugin.benchmark import add_to_benchmark_session, spare_second_table
from perflab.plugin.folder import own_folder
from perflab.plugin.fresh import JobResult, measure_fresh
from perflab.plugin.settings import Settings
from perflab.plugin.turn import device_turn
from perflab.records import Entry, Environment, Record, Replicate, Result, Verdict
from perflab.report.table import short_name, table, tally, wrap_facts
from perflab.units import format_percent

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
        self._results: list[Result] = []
        self._journal: Path | None = None
        self._notes: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a result at once, and journal it before anything else can go wrong."""
        plain = getattr(report, "perflab", None)
        if plain is None:
            return
        result = msgspec.convert(plain, Result)
        self._results.append(result)
        self._write_journal(result)
        add_to_benchmark_session(self._config, result)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Save what is to be saved. Runs after Ctrl-C too, with what was finished by then."""
        if not self._results:
            return
        try:
            self._save(interrupted=exitstatus == pytest.ExitCode.INTERRUPTED)
        except KeyboardInterrupt:  # while replicates were measured; what there was is saved
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        except BaselineError as error:
            self._notes.append(str(error))
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        try:
            self._write_json(int(session.exitstatus))
        except OSError as error:
            self._notes.append(
                f"cannot write {self._settings.json}: {error.strerror}\n"
                "  -> name another file with --perf-json=FILE; the results stand in .perflab/runs/"
            )
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the table."""
        if not self._results:
            return
        out = terminalreporter
        spare_second_table(self._config)
        out.ensure_newline()
        out.section("perf", sep="=")
        width = max(80, out._tw.fullwidth)
        for text in self._header(width):
            out.write_line(text)
        for line in table(self._results, width):
            colour = _COLOURS.get(line.verdict) if line.verdict is not None else None
            if colour is None:
                out.write_line(line.text)
                continue
            at = line.text.rindex("  ") + 2
            out.write(line.text[:at])
            out.write_line(line.text[at:], **{colour: True})
        for note in [*self._notes, *_noisy_baselines(self._results, self._settings.threshold)]:
            out.write_line(note)
        out.write_line(tally(self._results) + self._hint())

    # --- saving ---------------------------------------------------------------------------------------------

    def _save(self, *, interrupted: bool) -> None:
        chosen = [result for result in self._results if self._is_to_be_saved(result)]
        if not chosen:
            return
        records = {result.case: result.record for result in chosen if result.record is not None}
        replicates = {case: [record.summary] for case, record in records.items() if record.summary is not None}
        stopped: KeyboardInterrupt | None = None
        if replicates and not interrupted:
            try:
                self._add_fresh(replicates, {case: record.device for case, record in records.items()})
            except KeyboardInterrupt as error:
                stopped = error
        entries = {case: _entry(record, replicates.get(case, [])) for case, record in records.items()}
        store = BaselineStore(self._settings.baselines)
        paths = store.save(entries)
        self._results = [msgspec.structs.replace(result, saved=result.case in entries) for result in self._results]
        written = ", ".join(_relative(path, self._config) for path in paths)
        self._notes.append(f"saved {len(entries)} baseline{'s' * (len(entries) != 1)} to {written}")
        if interrupted or stopped is not None:
            least = min([len(group) for group in replicates.values()], default=0)
            many = "one replicate each" if least == 1 else f"{least} replicates each"
            self._notes.append(f"interrupted: these baselines have {many}, and know less of their noise")
        if stopped is not None:
            raise stopped

    def _is_to_be_saved(self, result: Result) -> bool:
        if result.record is None:
            return False
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
        document = {
            "schema": 1,
            "perflab": perflab.__version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "exitstatus": int(exitstatus),
            "results": [json.loads(msgspec.json.encode(result)) for result in self._results],
        }
        self._settings.json.parent.mkdir(parents=True, exist_ok=True)
        half = self._settings.json.with_name(f".{self._settings.json.name}.part")
        half.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        half.replace(self._settings.json)
        self._notes.append(f"wrote {_relative(self._settings.json, self._config)}")

    # --- the table's frame ----------------------------------------------------------------------------------

    def _header(self, width: int) -> list[str]:
        environments = [result.record.environment for result in self._results if result.record is not None]
        seen: dict[str, Environment] = {slug(environment): environment for environment in environments}
        return [
            line
            for name, e in seen.items()
            for line in wrap_facts(
                [
                    f"{e.device}: {e.device_name}{f', {e.cores} cores' if e.device == 'cpu' else ''}",
                    f"torch {e.torch}",
                    f"{_relative(self._settings.baselines / name, self._config)}/",
                ],
                width,
            )
        ]

    def _hint(self) -> str:
        verdicts = {result.judgement.verdict for result in self._results if not result.saved}
        if verdicts & {Verdict.NEW, Verdict.INCOMPARABLE}:
            return "   (save: --perf-update-new)"
        if verdicts & {Verdict.REGRESSED, Verdict.IMPROVED}:
            return "   (accept: --perf-update)"
        return ""


def _noisy_baselines(results: list[Result], threshold: float) -> list[str]:
    """What the run could not have seen: cases whose baselines differ by far more than the threshold."""
    limits = {
        result.case: result.judgement.latency.limit - 1.0
        for result in results
        if result.judgement.latency is not None and result.judgement.latency.limit is not None and not result.saved
    }
    noisy = {case: limit for case, limit in limits.items() if limit > 2 * threshold}
    if not noisy:
        return []
    worst = max(noisy, key=lambda case: noisy[case])
    span = f"{format_percent(min(noisy.values()))} to {format_percent(noisy[worst])}"
    return [
        f"{len(noisy)} of {len(limits)} baselines are noisy, and see only changes above {span}",
        f"  (worst: {short_name(worst)}); save them again on a quieter machine: --perf-update",
    ]


def _entry(record: Record, replicates: list[Replicate]) -> Entry:
    return Entry(
        environment=record.environment,
        recorded=f"{datetime.now(UTC):%Y-%m-%d}",
        replicates=replicates,
        parameters=record.parameters,
        out_of_memory=record.out_of_memory,
    )


def _relative(path: Path, config: pytest.Config) -> str:
    try:
        return str(path.relative_to(config.invocation_params.dir))
    except ValueError:
        return str(path)
