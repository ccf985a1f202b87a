"""perflab's pytest hooks. Every pytest run of every user with perflab installed loads this module, so the module
imports only pytest.

In order: declare the options; note what the run does (``noting.py``); find ``perf`` cases among the selected tests. If
there are perf cases, ``session/starting.py`` reads the settings and loads the code that runs the cases; their results
reach ``session/results.py`` on test reports. ``tests/plugin/test_light.py`` lists the modules that a run without perf
cases may load.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from perflab import noting, options  # modules only: pytest inspects every name of this module
from perflab.plugin import fixtures, hooks


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options and their ini keys."""
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks that a conftest or a plugin may implement, and register the fixtures."""
    pluginmanager.add_hookspecs(hooks)
    pluginmanager.register(fixtures, "perflab-fixtures")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    """Restart pytest as a dry run if an option or ini key asks for one, before pytest begins to capture output.

    In a fresh process that measures for another process, prepare the tiers before any of the user's code is imported.
    """
    asked = getattr(early_config.known_args_namespace, "perf_dry_run", None)
    if asked is not None or early_config.getini("perf_dry_run"):
        from perflab.predicted.dry_run.start import enter

        enter(early_config)
    job_file = getattr(early_config.known_args_namespace, "perf_sweep_job", None)
    if job_file is not None:
        from perflab.sweeps.jobs import read_job_file

        early_config.stash[noting.SAVES_NOTHING] = read_job_file(job_file).baselines is None
    path = getattr(early_config.known_args_namespace, "perf_replicate", None)
    if path is not None:
        from perflab.processes.channel import show_stacks_when_asked, to_parent
        from perflab.tiers.interface import tiers
        from perflab.tiers.job import read_job

        show_stacks_when_asked(2)  # before pytest captures standard error
        to_parent()
        job = read_job(path)
        for one in tiers():
            one.begin(job)
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Make a fresh process that measures for another process collect and run only the cases of its job."""
    path = _job_path(config)
    if path is not None:
        from perflab.running.case.fresh_process import FreshProcess
        from perflab.tiers.job import read_job

        config.pluginmanager.register(FreshProcess(config, read_job(path)), "perflab-fresh-process")
    elif config.getoption("perf_sweep_job", default=None) is not None:
        from perflab.sweeps.jobs import become_a_job

        become_a_job(config)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, refuse bad options, and begin to note what the run does."""
    arguments = ", ".join(f"{name}=" for name in options.MARKER_ARGUMENTS)
    config.addinivalue_line("markers", f"perf({arguments}): a case whose latency and peak memory are gated")
    config.addinivalue_line("markers", "correctness: a check of numerics against a reference")
    if config.getoption("perf_adopt") or config.getini("perf_adopt"):
        from perflab.running.case.adopting import adopt

        adopt(config)
    if config.getoption(options.ATTENTION_OPTION):
        config.pluginmanager.import_plugin("perflab.attention.plugin")
    # Options on the command line, including those in ``addopts``, but excluding ini keys.
    given = [option.dest for option in options.OPTIONS if config.getoption(option.dest, None) is not None]
    if given:
        from perflab.running.config.reading import settings_of
        from perflab.running.config.run_mode import refuse_contradictions, refusing

        with refusing(config):
            refuse_contradictions(config)
            settings_of(config)
    if config.getoption("perf_slurm") is not None and not (_job_path(config) or hasattr(config, "workerinput")):
        from perflab.running.config.run_mode import refusing
        from perflab.sweeps.session import prepare

        with refusing(config):
            prepare(config)
    if getattr(config.option, "tx", None) and (config.getoption("perf_against") or config.getini("perf_against")):
        from perflab.running.config.run_mode import RunMode, mode_asked_for, refusing

        with refusing(config):
            if mode_asked_for(config) is RunMode.MEASURE:  # else other tests run too, and nothing is compared
                # Sides take turns on the machine, one case at a time, so workers would only disturb each other.
                config.option.numprocesses, config.option.dist, config.option.tx = 0, "no", []
    if os.environ.get("PERFLAB_DRY_RUN"):
        from perflab.predicted.dry_run.plugins import begin

        begin(config)
    is_further_rank = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0"
    if _job_path(config) or is_further_rank:  # of the ranks that torchrun has started, the first alone reports
        return
    is_worker = hasattr(config, "workerinput") or config.stash.get(noting.SAVES_NOTHING, False)
    notes = config.stash[noting.NOTES] = noting.Notes() if is_worker else noting.AllNotes(config, _collected)
    config.pluginmanager.register(notes, "perflab-notes")
    if isinstance(notes, noting.AllNotes) and {"perf_json", "perf_prune"} & set(given):  # even without any perf case
        notes.collect()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let the tier whose fixture a test uses parametrize the test, such as by every registered kernel.

    A case that is marked with several numbers of processes is parametrized by them.
    """
    if any("world_size" in mark.kwargs for mark in metafunc.definition.iter_markers("perf")):
        from perflab.running.config.marker import spread

        spread(metafunc)
    for name in options.TIER_OF:
        if name in metafunc.fixturenames:
            from perflab.tiers.interface import tier

            tier(options.TIER_OF[name]).spread(metafunc)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Mark tests that use perflab's fixtures and note all tests, before ``-m`` selects; then order the cases."""
    for item in items:
        item.stash[noting.CASE] = item.nodeid
        names = getattr(item, "fixturenames", ())
        if any(name in names for name in ("perf", *options.TIER_OF)) and item.get_closest_marker("perf") is None:
            item.add_marker("perf")
    if noting.NOTES in config.stash:
        config.stash[noting.NOTES].items = list(items)
    yield
    if not config.option.collectonly and any(item.get_closest_marker("perf") for item in items):
        from perflab.running.session.case_order import take_turns

        take_turns(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Load the code that runs perf cases, if any were selected.

    This hook runs first, so that a worker of pytest-xdist reports its perf cases in time.
    """
    config, path = session.config, _job_path(session.config)
    if config.getoption("perf_slurm") is not None and not (path or hasattr(config, "workerinput")):
        from perflab.running.config.run_mode import refusing
        from perflab.sweeps.session import begin as begin_sweep

        with refusing(config):
            begin_sweep(config, session.items)
        return
    if config.getoption("perf_adversarial") or config.getini("perf_adversarial"):
        from perflab.running.config.reading import settings_of
        from perflab.running.config.run_mode import refusing

        with refusing(config):
            settings = settings_of(config)
            if settings.adversarial:
                from perflab.untrusted.in_pytest import begin as hold_candidates

                hold_candidates(config, session.items, settings.timeout_s)
    measures = not config.option.collectonly and any(item.get_closest_marker("perf") for item in session.items)
    given = any(mark.args or mark.kwargs for item in session.items for mark in item.iter_markers("correctness"))
    # These options skip other tests, or require that there are perf cases.
    chooses = config.getoption("perf_only") or config.getini("perf_only") or config.getoption("perf")
    if measures or given or chooses or path is not None or config.getoption("perf_prune"):
        from perflab.running.config.run_mode import refusing
        from perflab.running.session.starting import start

        with refusing(config):
            start(config, session.items, path)
    if noting.NOTES in config.stash:
        config.stash[noting.NOTES].items = []


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Announce before the first test what happens to the perf cases, if there are any."""
    tells = not (config.option.collectonly or _job_path(config) or hasattr(config, "workerinput"))
    if not (tells and any(item.get_closest_marker("perf") for item in items)):
        return []
    from perflab.running.session.starting import announcement

    return announcement(config, items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Register the hooks around pytest-xdist's workers, before the first worker is started."""
    notes = config.stash.get(noting.NOTES, None)
    if isinstance(notes, noting.AllNotes):
        from perflab.running.session.workers import Workers

        config.pluginmanager.register(Workers(config, notes), "perflab-workers")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print that perf cases ran untimed, in whichever process they ran."""
    notes = config.stash.get(noting.NOTES, None)
    if isinstance(notes, noting.AllNotes) and notes.untimed:
        from perflab.running.config.run_mode import untimed_line

        terminalreporter.ensure_newline()
        terminalreporter.write_line(untimed_line(config, notes.untimed))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show perflab's own errors by their text without a traceback, since the text is complete.

    Verdicts and skips get the test as their place.
    """
    report = yield
    if call.excinfo is not None:
        from perflab.base.errors import PerflabError

        raised = call.excinfo.value
        if isinstance(raised, PerflabError):
            from perflab.running.case.crash_place import as_text

            report.longrepr = as_text(item, str(raised), call.excinfo)
        elif isinstance(raised, pytest.skip.Exception) or (
            isinstance(raised, pytest.fail.Exception) and not raised.pytrace
        ):
            from perflab.running.case.crash_place import name_the_test

            name_the_test(item, call.excinfo, report)
    return report


def _job_path(config: pytest.Config) -> str | None:
    path: str | None = config.getoption("perf_replicate", default=None)
    return path


def _collected(config: pytest.Config, notes: noting.AllNotes) -> noting.Collects:
    from perflab.running.config.reading import settings_of
    from perflab.running.session.results import Collected

    return Collected(config, settings_of(config), notes)
