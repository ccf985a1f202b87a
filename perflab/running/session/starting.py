"""Starts a session with perf cases: reads settings, checks early, offers the cases to the tiers, announces them.

This module loads all code for perf cases; a run without perf cases does not load it.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from perflab.base.data import speakable, to_plain
from perflab.base.errors import UsageError
from perflab.base.identity import file_of
from perflab.devices.kinds import resolve_device
from perflab.internals.lookup import TORCH, TRITON, version_warnings
from perflab.noting import NOTES, AllNotes, Notes, case_id
from perflab.ranks.group import Place, launched
from perflab.results.documents import weave
from perflab.running.case.tools import PERF_FOR
from perflab.running.config.kinds import is_perf_case, measures_elsewhere, tier_asked_by
from perflab.running.config.marker import check_correctness_marker
from perflab.running.config.reading import settings_of
from perflab.running.config.run_mode import (
    RunMode,
    mode_of,
    refuse_an_empty_choice,
    refuse_contradictions,
    skip_the_unwanted,
)
from perflab.running.session.prune import COLLECTION
from perflab.running.session.workers import tell
from perflab.settings.settings import Settings
from perflab.store.case_files import module_of, name_of
from perflab.store.stale import Collection
from perflab.tiers.interface import tier, tiers
from perflab.tiers.job import Job, read_job
from perflab.units import format_count


def start(config: pytest.Config, items: list[pytest.Item], job_path: str | None) -> None:
    """Prepare the session for the perf cases among the selected tests; there may be none.

    Args:
        config: the session's configuration.
        items: all tests that were selected.
        job_path: the path of the job file in a fresh process that measures for another process; else None.

    Raises:
        PerflabError: the first error found that would otherwise appear late.
    """
    for item in items:
        check_correctness_marker(item)
    settings = settings_of(config)
    selected = [item for item in items if is_perf_case(item)]
    if job_path is not None:
        job = read_job(job_path)
        if job.place is not None and selected:
            _join(config, job.place, answers_by_itself=job.serve is None)
        if job.once:
            _run_once(config, settings, selected, job)
        elif selected or job.serve is not None:  # a side without cases has to report that
            watch(config, selected, job)
            _offer(config, settings, selected, job)
        return
    if (ours := launched()) is not None and ours[0] > 0:
        if selected and mode_of(config, items, selected) is not RunMode.SKIP:
            _begin_as_launched(config, settings, items, selected, ours)
        return
    refuse_contradictions(config)  # this time including ini keys
    if not selected and not config.option.collectonly:
        refuse_an_empty_choice(config, sum(map(is_perf_case, config.stash[NOTES].items)))
    mode = mode_of(config, items, selected)
    skip_the_unwanted(config, mode, items, selected)
    if mode is RunMode.MEASURE:
        _refuse_names_that_are_no_text(selected)
    if settings.prune or (selected and mode is RunMode.MEASURE):
        _tell_what_was_collected(config, settings, items, selected)
    if config.option.collectonly or not selected or mode is RunMode.SKIP:
        return
    if ours is not None:
        _begin_as_launched(config, settings, items, selected, ours)
        return
    if mode is RunMode.ONCE:
        _run_once(config, settings, selected, None)
        return
    watch(config, selected, None)
    _offer(config, settings, selected, None)


def _offer(config: pytest.Config, settings: Settings, selected: list[pytest.Item], job: Job | None) -> None:
    """Offer the cases to the tiers in reverse order; each takes its own, and the first tier gets the remaining ones."""
    for one in reversed(tiers()):
        selected = one.run(config, settings, selected, job)


def _refuse_names_that_are_no_text(selected: list[pytest.Item]) -> None:
    """Refuse file names that are not UTF-8, since results, baselines and other processes name cases in UTF-8.

    The folder for temporary files is checked too.

    Raises:
        UsageError: a name is not UTF-8; the error shows the name with escapes.
    """
    temporary = tempfile.gettempdir()
    if selected and speakable(temporary) != temporary:
        raise UsageError(
            f"{speakable(temporary)}: the name of the folder for temporary files is not UTF-8",
            "set TMPDIR to another folder",
        )
    for item in selected:
        if speakable(case_id(item)) != case_id(item):
            raise UsageError(f"{speakable(case_id(item))}: the name of its file is not UTF-8", "rename the file")


def _begin_as_launched(
    config: pytest.Config,
    settings: Settings,
    items: list[pytest.Item],
    selected: list[pytest.Item],
    ours: tuple[int, int],
) -> None:
    """Begin a session that is one of the ranks that ``torchrun`` has started: rank 0 judges and reports.

    Raises:
        UsageError: the run is to save baselines, for which processes are started.
    """
    from perflab.ranks.group import join_launched, measure_together
    from perflab.running.case.ranked import LaunchedRank

    rank, world_size = ours
    mode = mode_of(config, items, selected)
    skip_the_unwanted(config, mode, items, selected)
    if mode is RunMode.ONCE:  # tests of the user's may join the group themselves, so it is left to those who ask for it
        _run_once(config, settings, selected, None)
        return
    if settings.update or settings.update_new or settings.predict or settings.against is not None:
        raise UsageError(
            f"a run of {world_size} ranks that torchrun has started only measures and judges",
            f"save, predict or compare without torchrun: --perf-world-size={world_size}",
        )
    backend = "nccl" if resolve_device(settings.device).type == "cuda" else "gloo"
    join_launched(backend)
    measure_together()
    config.pluginmanager.register(LaunchedRank(config, rank), "perflab-launched")
    place = Place(rank=rank, world_size=world_size, store="", backend=backend, threads=0, limit_s=0.0)
    watch(config, selected, None)
    _offer(config, settings, selected, None if rank == 0 else Job(cases=None, place=place))


def _join(config: pytest.Config, place: Place, *, answers_by_itself: bool) -> None:
    """Make this process a rank of its case's group, and let it measure in step with the others.

    ``answers_by_itself``: whether it reports how its case ended; else it answers questions.
    """
    from perflab.ranks.group import join, measure_together
    from perflab.running.case.ranked import InRank, ToldRank

    join(place)
    measure_together()
    config.pluginmanager.register(ToldRank() if answers_by_itself else InRank(), "perflab-in-rank")


def _run_once(config: pytest.Config, settings: Settings, selected: list[pytest.Item], job: Job | None) -> None:
    """Register the hooks that run each case once, as a plain test, untimed."""
    from perflab.running.case.untimed import UntimedCases

    watch(config, selected, job)
    cases = UntimedCases(settings)
    config.stash[PERF_FOR] = cases.perf_for
    config.pluginmanager.register(cases, "perflab-untimed")
    cases.check(selected)


def _tell_what_was_collected(
    config: pytest.Config, settings: Settings, items: list[pytest.Item], selected: list[pytest.Item]
) -> None:
    """Pass the collection to the process in which results arrive: this one, or the controller of this worker."""
    notes = config.stash[NOTES]
    found = [case_id(item) for item in notes.items if is_perf_case(item)]  # the same in all shards of a run
    chosen = [case_id(item) for item in selected]
    names = set(chosen)
    cases = weave([[case for case in notes.shown if case in names] or chosen, found]) if selected else []
    config.stash[COLLECTION] = _collection_of(config, notes, found, settings.baselines)
    seen = to_plain(config.stash[COLLECTION])
    if isinstance(notes, AllNotes):
        notes.cases, notes.selected = cases, chosen
        notes.seen.append(seen)
        notes.collect()
    else:
        tell(config, cases, chosen, seen, announcement(config, items))


def _collection_of(config: pytest.Config, notes: Notes, cases: list[str], baselines: Path) -> Collection:
    """Return the collected perf ``cases``, and which files that have baselines were collected completely."""
    files: dict[str, list[str]] = {path: [] for path in sorted(_whole_files(config, notes, baselines))}
    for case in cases:
        if file_of(case) in files:
            files[file_of(case)].append(name_of(case))
    return Collection(files=files, cases=sorted(cases))  # workers may collect a set of parameters in another order


def _whole_files(config: pytest.Config, notes: Notes, baselines: Path) -> set[str]:
    single = [file_of(argument) for argument in config.args if "::" in argument]
    if config.getoption("lf", False) or (single and config.getoption("pyargs", False)):
        return set()  # --lf omits tests while collecting
    picked = {(config.invocation_params.dir / path).resolve() for path in single}
    stored = {path.stem for path in baselines.glob("*/*.json")}
    return {
        path
        for path in notes.collected - notes.troubled
        if module_of(path) in stored and (config.rootpath / path).resolve() not in picked
    }


def watch(config: pytest.Config, items: Sequence[pytest.Item], job: Job | None) -> None:
    """Register the plugins that guard the run: cases that hang fail, and a lowered limit of open files is restored.

    Cases that are coroutine functions are run too, if no other plugin runs them.
    """
    from perflab.running.case.hanging import Watch

    if sys.platform != "win32":
        config.pluginmanager.register(OpenFiles(), "perflab-open-files")
    if any(inspect.iscoroutinefunction(getattr(item, "obj", None)) for item in items):
        from perflab.running.case.coroutines import AsyncTests

        config.pluginmanager.register(AsyncTests(), "perflab-async-tests")
    config.pluginmanager.register(Watch(config, job), "perflab-watch")


class OpenFiles:
    """Hooks around every test of this process that check the limit of open files."""

    def __init__(self) -> None:
        import resource  # Windows has no such module

        self._resource, self._limits = resource, resource.getrlimit(resource.RLIMIT_NOFILE)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Check the limit as soon as the test's body has ended, before judging the case opens files."""
        try:
            return (yield)
        finally:
            resource = self._resource
            left, before = resource.getrlimit(resource.RLIMIT_NOFILE)[0], self._limits[0]
            if left < before:
                said = f"{item.nodeid} left the limit of open files (RLIMIT_NOFILE) at {left}"
                try:
                    resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)
                except ValueError:  # the hard limit was lowered too, and raising it needs privileges
                    pytest.exit(
                        f"{said} for good, so nothing more can be opened: have the test lower the soft one alone"
                    )
                item.warn(pytest.PytestWarning(f"{said}, and it was put back to {before}"))


def announcement(config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
    """Return lines that announce how the perf cases are treated, one line for each treatment.

    There are no such lines if all cases are simply measured, or if the run does not measure. The first lines, also in a
    quiet run, warn of versions of PyTorch and Triton that perflab was not checked with.

    Raises:
        SettingError: a setting that cannot be used.
    """
    marked = [item for item in items if is_perf_case(item)]
    if config.option.collectonly or not marked or mode_of(config, items, marked) is not RunMode.MEASURE:
        return []
    warnings = [f"perf: {one}" for one in version_warnings(TORCH, TRITON)]
    return warnings + (_ways(config, items, marked) if config.option.verbose >= 0 else [])


def _ways(config: pytest.Config, items: Sequence[pytest.Item], marked: Sequence[pytest.Item]) -> list[str]:
    settings = settings_of(config)
    own = Counter(name for item in marked if (name := tier_asked_by(item)) is not None)
    others = sum(tier_asked_by(item) is None and not measures_elsewhere(item) for item in marked)
    if settings.against is not None:  # cases with a tier's own fixture do not depend on the machine, and are skipped
        return []
    said = []
    if not settings.predict:  # a prediction skips cases with a tier's own fixture too
        said += [f"{format_count(others, 'case')} measured"] if others and own else []
        said += [f"{format_count(count, tier(name).unit)} {name}" for name, count in own.items()]
    lines = [f"perf: {', '.join(said)}"] if said else []
    return [*lines, *(line for one in tiers() if others for line in one.announce(settings, others))]
