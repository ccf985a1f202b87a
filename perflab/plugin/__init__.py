"""pytest's side of perflab. Loading it loads neither torch nor triton, and nothing is done until a case asks.

What happens, in order: options are declared and read; ``perf`` cases are found among the selected tests; only
then the measuring side (``measuring``) is loaded. Results travel on test reports to the collecting side
(``collecting``), which journals, saves and shows them.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from perflab.errors import PerflabError
from perflab.plugin.fixtures import autocast, compiled_kernel, device, memory_snapshot, nvtx_range, perf, sync, warmup
from perflab.plugin.kinds import COMPILED_FIXTURE, is_compiled_case
from perflab.plugin.options import add_options
from perflab.plugin.order import note_found, tell_order
from perflab.plugin.stash import AGAINST, CASES, COMPILED, EARLY_PROBLEM, SETTINGS, is_worker

__all__ = ["autocast", "compiled_kernel", "device", "memory_snapshot", "nvtx_range", "perf", "sync", "warmup"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options and their ini twins."""
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks that others may implement."""
    from perflab.plugin import hooks

    pluginmanager.add_hookspecs(hooks)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """In a process that measures an installed version: have its modules found before a conftest imports others."""
    path = getattr(early_config.known_args_namespace, "perf_replicate", None)
    if path is not None:
        from perflab.plugin.fresh import read_job

        serve = read_job(path).serve
        if serve is not None and serve.first:
            from perflab.plugin.serving import TakenFrom

            sys.meta_path.insert(0, TakenFrom(serve.first))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """In a fresh process that measures for another one, drop what was asked of that one alone."""
    if _job_path(config):
        from perflab.plugin.fresh import quieten

        quieten(config)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, read the settings, and stand ready for results."""
    from perflab.plugin.marker import MARKER_ARGUMENTS
    from perflab.plugin.settings import read_settings

    arguments = ", ".join(f"{name}=" for name in MARKER_ARGUMENTS)
    config.addinivalue_line("markers", f"perf({arguments}): a case whose latency and peak memory are gated")
    config.addinivalue_line("markers", "correctness: a check of numerics against a reference")
    try:
        settings = config.stash[SETTINGS] = read_settings(config)
    except PerflabError as error:
        raise pytest.UsageError(str(error)) from None
    if settings.against is not None and hasattr(config.option, "numprocesses"):
        # Sides take turns on the machine, one case at a time: workers would only be in each other's way.
        config.option.numprocesses, config.option.dist, config.option.tx = 0, "no", []
    if _job_path(config):
        return
    from perflab.plugin.seen import SEEN, Seen

    seen = config.stash[SEEN] = Seen(config, settings)
    config.pluginmanager.register(seen, "perflab-seen")
    if not is_worker(config):
        from perflab.plugin.collecting import Collected

        config.pluginmanager.register(Collected(config, settings), "perflab-collected")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """In a fresh process: pass over the files that hold none of its cases."""
    path = _job_path(config)
    if path is None or collection_path.suffix != ".py" or collection_path.name == "__init__.py":
        return None
    from perflab.plugin.fresh import read_job

    cases = read_job(path).cases
    if cases is None:
        return None
    wanted = {(config.rootpath / case.split("::")[0]).resolve() for case in cases}
    return None if collection_path.resolve() in wanted else True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test that asks for ``compiled_kernel`` a case for every registered kernel and architecture."""
    if COMPILED_FIXTURE in metafunc.fixturenames:
        from perflab.plugin.compiled import spread

        problem = None
        try:
            spread(metafunc)
        except PerflabError as error:
            problem = str(error)  # told below, since pytest would show what it came of beside it
        if problem is not None:
            pytest.fail(problem, pytrace=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Mark tests that use either fixture of ours, before ``-m`` chooses; in a fresh process, keep its cases alone."""
    for item in items:
        if {"perf", COMPILED_FIXTURE} & set(getattr(item, "fixturenames", ())) and item.get_closest_marker(
            "perf"
        ) is None:
            item.add_marker("perf")
    note_found(config, items)
    yield
    path = _job_path(config)
    if path is not None:
        from perflab.plugin.fresh import read_job

        wanted = read_job(path).cases
        if wanted is None:
            items[:] = [item for item in items if item.get_closest_marker("perf") and not is_compiled_case(item)]
            return
        items.sort(key=lambda item: wanted.index(item.nodeid) if item.nodeid in wanted else len(wanted))
        items[:] = [item for item in items if item.nodeid in wanted]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Load the measuring side if there is something to measure, and find early what would fail late."""
    from perflab.plugin.marker import check_correctness_marker

    config = session.config
    try:
        for item in session.items:
            check_correctness_marker(item)
        selected = [item for item in session.items if item.get_closest_marker("perf") is not None]
        _conclude_what_was_seen(config, bool(selected) and not config.option.collectonly)
        path = _job_path(config)
        from perflab.plugin.fresh import read_job

        job = read_job(path) if path else None
        serves = job is not None and job.serve is not None  # also where there is no case: that is an answer
        if config.option.collectonly or not (selected or serves):
            return
        tell_order(config, selected)
        compiled_items = [item for item in selected if is_compiled_case(item)]
        if compiled_items and path is None:
            from perflab.plugin.compiled import CompiledCases

            compiled_cases = CompiledCases(config, config.stash[SETTINGS])
            config.pluginmanager.register(compiled_cases, COMPILED)
            compiled_cases.check(compiled_items)
            selected = [item for item in selected if not is_compiled_case(item)]
            if not selected:
                return
        if config.stash[SETTINGS].against is not None and path is None:
            _compare_instead(config, [item for item in selected if "perf" in getattr(item, "fixturenames", ())])
            return
        from perflab.plugin.measuring import Cases

        server = None
        if job is not None and job.serve is not None:
            from perflab.plugin.serving import Server

            server = Server(job.serve, config.rootpath)
            config.pluginmanager.register(server, "perflab-server")
        cases = Cases(config, config.stash[SETTINGS], job, server)
        config.stash[CASES] = cases
        config.pluginmanager.register(cases, "perflab-cases")
        cases.check(selected)
    except PerflabError as error:
        if is_worker(config):  # a worker that ends here would take its other tests with it: let the cases say it
            config.stash[EARLY_PROBLEM] = error
            return
        raise pytest.UsageError(str(error)) from None


def _compare_instead(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have the cases compared with another version, in processes of their own."""
    from perflab.plugin.against import Against

    against = Against(config, config.stash[SETTINGS])
    config.pluginmanager.register(against, AGAINST)
    against.check(items)


def _conclude_what_was_seen(config: pytest.Config, measures: bool) -> None:
    from perflab.plugin.seen import SEEN

    seen = config.stash.get(SEEN, None)
    if seen is not None and (measures or config.stash[SETTINGS].prune):
        seen.conclude()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """In a worker: say in each test what would have ended the session before anything ran. Skip what is too late.

    No wrapper: what is raised before a wrapper yields keeps other plugins from what they undo in teardown.
    """
    if EARLY_PROBLEM in item.config.stash:
        raise item.config.stash[EARLY_PROBLEM]
    if CASES in item.config.stash:
        from perflab.plugin.measuring import Cases

        cases = item.config.stash[CASES]
        assert isinstance(cases, Cases)
        cases.skip_if_late(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show errors of ours by their text alone; it is complete."""
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, PerflabError):
        report.longrepr = str(call.excinfo.value)
    return report


def _job_path(config: pytest.Config) -> str | None:
    path: str | None = config.getoption("perf_replicate", default=None)
    return path
