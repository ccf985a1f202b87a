"""``--perf-adopt``: makes perf cases of tests that were written for pytest-benchmark or CodSpeed, without an edit.

A fixture ``benchmark`` replaces theirs, whichever of the two is installed, and uses ``perf`` to measure the function
that it is called with. A test that has CodSpeed's marker but no fixture is measured as a whole. If a test uses a
feature that perflab lacks, a warning names the feature, and the test runs with its original fixture.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from perflab.base.errors import UsageError
from perflab.running.config.kinds import RUNS_AS_BEFORE

if TYPE_CHECKING:
    from perflab.running.case.perf import Perf

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_WHOLE: pytest.StashKey[bool] = pytest.StashKey()
"""Set to True on a test whose whole body is measured."""


def adopt(config: pytest.Config) -> None:
    """Register the plugin that adopts tests, if the option or the ini key asks for it.

    Raises:
        pytest.UsageError: the ini key is neither true nor false.
    """
    from perflab.settings.given import parse_flag

    try:
        asked = config.getoption("perf_adopt") or parse_flag(config.getini("perf_adopt"))
    except ValueError as error:
        raise pytest.UsageError(f"perf_adopt = {error}\n  -> write perf_adopt = true, or leave it out") from None
    if asked:
        config.pluginmanager.register(Adopting(), "perflab-adopting")


class Benchmark:
    """The value of ``benchmark`` in adopted tests: the part of pytest-benchmark's fixture that perflab supports."""

    def __init__(self, request: pytest.FixtureRequest, perf: Perf) -> None:
        self._request, self._perf = request, perf
        self._measured: tuple[str, tuple[Any, ...], dict[str, Any]] | None = None
        marker = request.node.get_closest_marker("benchmark")
        self.group: str | None = marker.kwargs.get("group") if marker is not None else None
        self.name, self.fullname = request.node.name, request.node.nodeid
        self.extra_info: dict[str, Any] = {}
        self.enabled, self.disabled = True, False

    def __call__(self, function_to_benchmark: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Measure ``function_to_benchmark(*args, **kwargs)`` and return its result."""
        self._measured = "__call__", (function_to_benchmark, *args), kwargs
        return self._perf(_without_setup(function_to_benchmark, kwargs), *args, **_but_setup(kwargs))

    def pedantic(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        setup: Callable[[], Any] | None = None,
        **options: Any,
    ) -> Any:
        """Measure ``target``, with arguments from ``setup`` if there is one.

        The budget determines the number of calls: ``rounds``, ``iterations`` and ``warmup_rounds`` are ignored.
        """
        given = dict(kwargs or {})
        if options.get("teardown") is not None:
            return self._before("pedantic(teardown=)").pedantic(target, args, given, setup=setup, **options)
        self._measured = "pedantic", (target, args, given), {"setup": setup, **options}
        if setup is None:
            return self._perf(_without_setup(target, given), *args, **_but_setup(given))
        from perflab.measure.clocks.set_up import Both

        def make() -> Both | None:
            made = setup()
            return Both(*made) if made else None

        return self._perf(target, *args, setup=make, **given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        before = self._before(f"benchmark.{name}")
        if self._measured is not None:
            method, args, kwargs = self._measured
            getattr(before, method)(*args, **kwargs)
        return getattr(before, name)

    def note(self) -> None:
        """Store the test's group and ``extra_info`` as facts of the case; warn of values that cannot be facts."""
        facts = {**({"group": self.group} if self.group is not None else {}), **self.extra_info}
        for name, value in facts.items():
            try:
                self._perf.note(**{name: value})
            except UsageError as error:
                _say(self._request.node, f"extra_info[{name!r}] is not stored: {error.problem}")

    def _before(self, used: str) -> Any:
        """Return the original ``benchmark`` fixture for a test that uses a feature which perflab lacks, with a warning.

        Raises:
            UsageError: no plugin is installed that provides the original fixture.
        """
        node = self._request.node
        request = node._request
        defined, ours = request._arg2fixturedefs["benchmark"], request._fixture_defs.pop("benchmark")
        theirs = [one for one in defined if one is not ours]
        request._arg2fixturedefs["benchmark"] = theirs
        try:
            found = request.getfixturevalue("benchmark") if theirs else None
        finally:
            request._arg2fixturedefs["benchmark"], request._fixture_defs["benchmark"] = defined, ours
        if found is None:
            raise UsageError(
                f"{node.nodeid}: uses {used}, which perflab lacks, and no plugin is installed that has it",
                "install pytest-benchmark, or leave the test out: --deselect",
            )
        node.stash[RUNS_AS_BEFORE] = True
        _say(node, f"uses {used}, which perflab lacks; it ran as before")
        return found


class Adopting:
    """The plugin that adopts tests; registered after all installed plugins, so that its fixture overrides theirs."""

    @pytest.fixture
    def benchmark(self, request: pytest.FixtureRequest, perf: Perf) -> Benchmark:
        """Measure a function with ``perf``, through pytest-benchmark's interface."""
        return Benchmark(request, perf)

    def pytest_configure(self, config: pytest.Config) -> None:
        """Register the marker ``benchmark``, whichever plugins are installed."""
        config.addinivalue_line("markers", "benchmark: a benchmark of pytest-benchmark or CodSpeed")

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Use the group of a test as its study, and measure a test that has only the marker as a whole."""
        marker = item.get_closest_marker("benchmark")
        if marker is None or not isinstance(item, pytest.Function) or "perf" in item._fixtureinfo.argnames:
            return
        if "benchmark" not in item.fixturenames:
            item.stash[_WHOLE] = True
            if "perf" not in item.fixturenames:  # the parameter sets of a test share this list
                item.fixturenames.append("perf")
        if marker.kwargs.get("group") is not None:
            item.add_marker(pytest.mark.perf(study=str(marker.kwargs["group"])))

    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Measure the whole body of a test that has only the marker."""
        if not pyfuncitem.stash.get(_WHOLE, False):
            return None
        given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        perf: Any = pyfuncitem.funcargs["perf"]
        perf(functools.partial(pyfuncitem.obj, **given))
        return True

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Store the test's ``extra_info`` once its body has ended."""
        outcome = yield
        found = getattr(item, "funcargs", {}).get("benchmark")
        if isinstance(found, Benchmark):
            found.note()
        return outcome

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Hide the fixture's value from pytest-benchmark, which refuses any value but its own."""
        given = getattr(item, "funcargs", None) or {}
        found = given.pop("benchmark") if isinstance(given.get("benchmark"), Benchmark) else None
        try:
            return (yield)
        finally:
            if found is not None:
                given["benchmark"] = found


def _without_setup(call: Callable[..., Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the callable with its own argument ``setup`` bound, since ``perf`` has an argument of that name too."""
    return functools.partial(call, setup=kwargs["setup"]) if "setup" in kwargs else call


def _but_setup(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name != "setup"}


def _say(item: pytest.Item, said: str) -> None:
    warnings.warn(pytest.PytestWarning(f"{item.nodeid}: {said}"), stacklevel=2)
