"""The session of a sweep: submits jobs, logs their reports as if the tests had run here, and keeps them.

A job is to this session what a worker is to pytest-xdist's controller: it judges on its machine and writes nothing, and
results are collected, shown and written here. A job that saves baselines, which takes more replicates on its machine,
has a folder of its own for them; they are joined here. What has been reported stays in ``.perflab/sweeps/`` until the
sweep is whole, so that the same command runs the rest alone.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perflab.base.data import to_json
from perflab.base.errors import UsageError
from perflab.base.git import ask_git
from perflab.noting import NOTES, AllNotes, case_id
from perflab.options import SWEEP_JOB_OPTION, SWEEP_OPTION
from perflab.running.case.fresh_process import further_arguments
from perflab.running.config.command_line import without
from perflab.running.config.folder import own_place
from perflab.running.config.kinds import is_perf_case
from perflab.running.config.marker import for_case
from perflab.running.config.reading import set_settings, settings_of
from perflab.running.config.run_mode import refusing
from perflab.running.session.workers import log_reports, report_of, report_of_lost
from perflab.store.case_files import join_baselines
from perflab.sweeps.jobs import Case, Cluster, Job, JobFile, Reader, Submitted, command_of, pack, read_cluster
from perflab.tiers.interface import by_folder
from perflab.units import format_count

HERE = "on"
"""The option's value where it names no file."""
BASELINES = "baselines"
_POLL_S = 0.5
_GRACE_S = 10.0
"""The seconds for which a job that no longer exists may still have reports on their way: shared folders lag."""
_PER_CASE = 2.0
"""How many times its budget a case is expected to take: set-up, memory, counts."""


def prepare(config: pytest.Config) -> None:
    """Register the sweep, before anything is collected.

    Raises:
        UsageError: pytest-xdist's workers are asked for too.
        SettingError: the file of the option cannot be read.
    """
    if getattr(config.option, "tx", None):
        raise UsageError(f"{SWEEP_OPTION} and -n: jobs run their cases one after the other", "leave -n out")
    given = config.getoption("perf_slurm")
    cluster = read_cluster(None if given == HERE else Path(given))
    settings = settings_of(config)
    saves = settings.update or settings.update_new
    set_settings(config, replace(settings, update=False, update_new=False, reason=None))  # the jobs save
    config.pluginmanager.register(Sweep(config, cluster, settings.baselines if saves else None), "perflab-sweep")


def begin(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Note the cases, whose results will arrive from jobs.

    Raises:
        PerflabError: a mark that cannot be used.
    """
    sweep = config.pluginmanager.getplugin("perflab-sweep")
    assert isinstance(sweep, Sweep)
    sweep.cases = {item.nodeid: sweep.case_of(item) for item in items}
    notes = config.stash[NOTES]
    assert isinstance(notes, AllNotes)
    notes.cases = [case_id(item) for item in items if is_perf_case(item)]
    notes.collect()


class Sweep:
    """Plugin that runs the tests of the session in jobs."""

    def __init__(self, config: pytest.Config, cluster: Cluster, baselines: Path | None) -> None:
        """``baselines``: the project's, if the sweep saves any."""
        self._config = config
        self._cluster = cluster
        self._baselines = baselines
        arguments = [str(one) for one in config.invocation_params.args]
        names_no_file = config.getoption("perf_slurm") == HERE
        self._arguments = without(arguments, **{"flags" if names_no_file else "options": [SWEEP_OPTION]})
        self.cases: dict[str, Case] = {}
        """The needs of each test, by its node id."""
        self._open: dict[str, pytest.Item] = {}
        self._job_of: dict[str, str] = {}
        """The number of each test's job, by the test's node id."""
        self._said = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run the session's tests in jobs, but for those that an earlier session of this sweep has reports of."""
        if session.testsfailed or self._config.option.collectonly or not session.items:
            return None
        self._open = {item.nodeid: item for item in session.items}
        with refusing(self._config):
            folder = own_place(self._config.rootpath, "sweeps", self._key())
            submitted = Submitted(self._cluster, folder)
        known = sum(map(self._log, self._kept(folder)))
        if known:
            self._say(f"{format_count(known, 'test')} of this sweep had ended in an earlier session")
        jobs = pack([self.cases[nodeid] for nodeid in self._open], self._cluster)
        readers: dict[str, Reader] = {}
        try:
            made = [int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal()]
            with refusing(self._config):
                for number, job in enumerate(jobs, start=max(made, default=-1) + 1):
                    readers[self._submit(submitted, job, folder / str(number))] = Reader(folder / f"{number}.jsonl")
            self._follow(submitted, readers)
        except BaseException:
            submitted.cancel()
            raise
        # Of each case the last baseline that was recorded counts.
        saved = [place for place in folder.glob(f"*-{BASELINES}") if any(place.rglob("*.json"))]
        if self._baselines is not None and saved:
            before = [self._baselines] if self._baselines.is_dir() else []
            _, files = join_baselines([*before, *saved], self._baselines, by_folder())
            self._say(f"baselines of the jobs joined into {', '.join(map(str, files))}")
        if not self._open and (self._baselines is None or all(reader.is_whole for reader in readers.values())):
            shutil.rmtree(folder, ignore_errors=True)
        died = {reader.running for reader in readers.values()}
        told: set[str] = set()
        for item in list(self._open.values()):
            job_number = self._job_of[item.nodeid]
            has_begun = case_id(item) in died
            said = f"{'it has not begun: ' * (not has_begun)}its job {job_number} ended{' before it did' * has_begun}"
            log = f"\n{submitted.log_of(job_number)}" if job_number not in told else ""
            told.add(job_number)
            again = "the same command runs what is missing, and nothing twice"
            log_reports(item, [report_of_lost(item, f"{said}{log}\n  -> {again}", said)])
        return True

    def _kept(self, folder: Path) -> list[Reader]:
        """Return readers of the reports of earlier sessions; remove those of a job that died before it saved."""
        found = []
        for path in sorted(folder.glob("*.jsonl")):
            whole = Reader(path)
            whole.new()
            if whole.is_whole or self._baselines is None:
                found.append(Reader(path))
            else:
                path.unlink()
        return found

    def _key(self) -> str:
        """Return what tells this sweep from others: its options, and the code that it runs.

        Git knows all of the code that is committed or changed; of the rest, modules count that the tests have imported.
        """
        root = self._config.rootpath
        said = [*self._arguments, ask_git(root, "rev-parse", "HEAD"), ask_git(root, "diff", "HEAD")]
        key = hashlib.sha256(repr(said).encode())
        files = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
        for path in map(Path, sorted(files)):
            if path.is_relative_to(root) and path.is_file():
                key.update(path.read_bytes())
        return key.hexdigest()[:16]

    def case_of(self, item: pytest.Item) -> Case:
        """Return what a test needs in a job.

        Raises:
            PerflabError: a mark that cannot be used.
        """
        if not is_perf_case(item):
            return Case(item.nodeid, 1.0, self._cluster.gpus)
        settings = for_case(settings_of(self._config), item)
        ranks, nodes = settings.world_size, settings.nodes
        if ranks % nodes:
            raise UsageError(
                f"{item.nodeid}: {ranks} ranks on {nodes} nodes",
                "give each node as many: world_size a multiple of nodes",
            )
        gpus = self._cluster.gpus * ranks // nodes if settings.gpus is None else settings.gpus
        return Case(item.nodeid, _PER_CASE * settings.budget_s, gpus, nodes, ranks if nodes > 1 else 1)

    def _submit(self, submitted: Submitted, job: Job, stem: Path) -> str:
        file = stem.with_suffix(".json")
        cases = [case_id(self._open[one]) for one in job.cases]
        own = ["--perf", *further_arguments(self._config)]
        saved = None if self._baselines is None else stem.with_name(f"{stem.name}-{BASELINES}")
        if saved is not None and self._baselines is not None:
            own += [f"--perf-baselines={saved}", f"--perf-json={stem}-results.json"]
            if self._baselines.is_dir():
                shutil.copytree(self._baselines, saved)
        told = JobFile(
            cases=cases, reports=str(stem.with_suffix(".jsonl")), baselines=str(saved) if saved is not None else None
        )
        file.write_bytes(to_json(told))
        command = command_of(job, self._cluster, [*self._arguments, *own, f"{SWEEP_JOB_OPTION}={file}"])
        number = submitted.submit(job, command, Path(self._config.invocation_params.dir))
        self._job_of.update(dict.fromkeys(job.cases, number))
        return number

    def _follow(self, submitted: Submitted, readers: dict[str, Reader]) -> None:
        """Log reports as they arrive, until no job is left."""
        gone: dict[str, float] = {}
        left = dict(readers)
        while left:
            states = submitted.states()
            for number, reader in list(left.items()):
                self._log(reader)
                if number in states:
                    gone.pop(number, None)
                elif time.monotonic() - gone.setdefault(number, time.monotonic()) > _GRACE_S or not self._open:
                    del left[number]
            counted = {state: [*states.values()].count(state) for state in dict.fromkeys(states.values())}
            told = ", ".join(f"{many} {state.lower()}" for state, many in counted.items())
            if counted and told != self._said:
                self._said = told
                self._say(f"jobs {told}; {format_count(len(self._open), 'test')} to go")
            time.sleep(_POLL_S)

    def _log(self, reader: Reader) -> int:
        """Log the reports of the tests that have ended, and return how many they are."""
        ended = [(self._open.pop(nodeid), reports) for nodeid, reports in reader.new() if nodeid in self._open]
        for item, reports in ended:
            log_reports(item, [report_of(self._config, one) for one in reports])
        return len(ended)

    def _say(self, text: str) -> None:
        reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(f"perf: {text}")
