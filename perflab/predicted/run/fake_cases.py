"""Runs predicted cases in pytest: fake tensors around set-up, body and teardown; errors in words.

``--perf-predict`` makes a test's fixtures and body see fake tensors from the start. Without the option, on a machine
without a GPU, a case that exceeds the machine is predicted from the point at which it states its needs
(``perf.requires``) before building anything: a prediction tells more than the stated costs. Such a prediction was not
requested, so a case that cannot be predicted is skipped, as it would have been anyway. A fixture that holds fake
tensors is torn down before a test that needs real ones, and the other way round.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Generator
from typing import Any, NoReturn

import pytest

from perflab.attribution.reachable import reachable
from perflab.base.errors import PerflabError, PredictionError
from perflab.internals.lookup import switched_off
from perflab.measure.machine.devices import as_out_of_memory
from perflab.predicted.dry_run.plugins import VALUES, ValuesRead
from perflab.predicted.run.predicting import Instead, Predictions
from perflab.running.case.perf import STATE, CaseState, NothingComparedError
from perflab.running.case.refusals import line_of_launch
from perflab.running.config.kinds import FAKING, measures_elsewhere
from perflab.settings.settings import Settings

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_REMEDY = (
    "move code that reads values of tensors out of the callable, or out of predictions: `if not perf.predicts: ...`; "
    "work that depends on values (a loop's length, an early exit) can only be measured"
)
_MEASURE_ONLY = "only measure this case: @pytest.mark.perf(predict=False)"
_REGISTER = (
    "register shapes for an operator of your own (`@torch.library.register_fake`); call an operator of PyTorch's with "
    f"other arguments, such as floats; or {_MEASURE_ONLY}"
)
_REGISTER_KERNEL = (
    "launch it in an operator with a fake implementation (`@torch.library.triton_op` or `custom_op`, and "
    f"`register_fake`); or {_MEASURE_ONLY}"
)


class PredictedCases:
    """The pytest hooks around the cases of this process."""

    def __init__(self, settings: Settings, predictions: Predictions) -> None:
        self._settings = settings
        self._predictions = predictions
        self._fake_ones: weakref.WeakSet[Any] = weakref.WeakSet()
        """The fixtures that were made while tensors were fake."""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, Any, Any]:
        """Note whether a fixture is made of fake tensors."""
        is_fake = request.config.stash.get(FAKING, None) is not None
        (self._fake_ones.add if is_fake else self._fake_ones.discard)(fixturedef)
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        """Set up a predicted case's fixtures with fake tensors; skip a case that is marked as not predictable.

        Raises:
            UsageError: the case has no such rank as is to be played.
        """
        state = item.stash.get(STATE, None)
        if state is not None:
            state.predicts = self._settings.predict and not measures_elsewhere(item)
            if state.predicts and not state.settings.is_predictable:
                state.predicts = False
                raise pytest.skip.Exception("not to be predicted: perf(predict=False)", _use_item_location=True)
            if state.predicts:
                self._predictions.play_rank(item, state)  # before tensors are fake, until they no longer are
        self._clear(item, is_fake=state is not None and state.predicts)
        if state is None:
            return (yield)
        with self._fake_for(state):
            try:
                return (yield)
            except Exception as error:
                if not state.predicts:
                    raise
                self._tell(state, error)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Run a predicted case's body with fake tensors, then judge the prediction.

        A body that needs values after the prediction ends there. A test that fails by itself is not judged.
        """
        state = item.stash.get(STATE, None)
        if state is None:
            return (yield)
        with state.part(Instead).until_judged:
            outcome = yield from self._body(item, state)
            fails = getattr(item, "_excinfo", None) or state.subtest_failures
            if state.outcome is not None and not fails:
                state.result = self._predictions.judged(state)
                self._predictions.fail_if_worse(state.result, settings=state.settings)
            return outcome

    def _body(self, item: pytest.Item, state: CaseState) -> Generator[None, object, object]:
        with self._fake_for(state):
            try:
                outcome = yield
            except Exception as error:
                if not state.predicts:
                    raise
                self._end(item, state, error)
                return None
            kept = getattr(item, "_excinfo", None)  # where a unittest.TestCase keeps its failure until the report
            if state.predicts and kept and isinstance(kept[0].value, Exception):
                try:
                    self._end(item, state, kept[0].value)
                    kept.clear()
                except (Exception, pytest.skip.Exception) as told:
                    if told is not kept[0].value:
                        kept[0] = pytest.ExceptionInfo.from_current()
            return outcome

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        """Tear down a predicted case's fixtures with fake tensors, then leave the group that it has joined alone."""
        state = item.stash.get(STATE, None)
        if state is None:
            return (yield)
        instead = state.part(Instead)
        instead.until_judged.close()  # still open if a fixture asked for a prediction and the body never ran
        try:
            with self._fake_for(state):
                return (yield)
        finally:
            instead.group.close()

    def _clear(self, item: pytest.Item, *, is_fake: bool) -> None:
        """Tear down the fixtures that a test cannot use: pytest makes a fixture anew when a test requests it.

        A fixture that was made of fake tensors is torn down with fake tensors.
        """
        if not is_fake and not self._fake_ones:
            return
        info = getattr(item, "_fixtureinfo", None)
        request: Any = getattr(item, "_request", None)
        if info is None or request is None:
            return
        for fixture in [one for found in info.name2fixturedefs.values() for one in found]:
            was_fake = fixture in self._fake_ones
            if fixture.cached_result is not None and was_fake is not is_fake and _matters(fixture):
                with self._predictions.fake() if was_fake else contextlib.nullcontext():
                    fixture.finish(request)

    def _fake_for(self, state: CaseState) -> contextlib.AbstractContextManager[None]:
        return self._predictions.fake() if state.predicts else contextlib.nullcontext()

    def _end(self, item: pytest.Item, state: CaseState, error: Exception) -> None:
        """Accept the error of a body that needs values after its prediction; raise what any other error means.

        The rest of such a body is about values, so its test passes.
        """
        # A dry run's test may end in an assertion about values, which a dry run does not compute.
        values = item.config.pluginmanager.getplugin(VALUES)
        reads_zero = isinstance(values, ValuesRead) and values.line is not None and isinstance(error, AssertionError)
        ends_well = isinstance(error, NothingComparedError) or _is_of_fake_tensors(error) or reads_zero
        if state.outcome is None or not ends_well:
            self._tell(state, error)

    def _tell(self, state: CaseState, error: Exception) -> NoReturn:
        """Raise the error or skip with which a predicted case ends after this error."""
        from perflab.predicted.cuda.fake_errors import operator_of_a_loader, without_machinery

        if self._settings.dry_run:
            if as_out_of_memory(error) is not None:
                self._predictions.out_of_memory(state, error)
            raise error
        cannot = _why_not(error)
        unmet = state.part(Instead).of
        if (operator := operator_of_a_loader(error)) is not None and unmet is None:
            said = f"nothing to predict: a data loader runs on the host, and {operator} needs values"
            raise pytest.skip.Exception(said, _use_item_location=True)
        if unmet is None:
            told = PredictionError(f"{state.case}: cannot be predicted, {cannot[0]}", cannot[1]) if cannot else error
            raise without_machinery(told)
        if cannot is not None:
            said, _ = cannot
        elif isinstance(error, PerflabError):
            said = error.problem.removeprefix(f"{state.case}: ")
        else:
            first_line = " ".join(str(error).strip().partition("\n")[0].split())
            said = f"{type(error).__name__}: {first_line}".removesuffix(": ")
        raise pytest.skip.Exception(f"{unmet}; cannot be predicted, {said}", _use_item_location=True)


def _why_not(error: Exception) -> tuple[str, str] | None:
    """Return why a case cannot be predicted, and the remedy; None for an error that is not one of fake tensors."""
    from perflab.predicted.cuda.fake_errors import higher_order_operator, unpredictable, what_needs_numbers

    off = switched_off(error)
    if off is not None:
        return off.problem, off.remedy
    launch = line_of_launch(error)
    if launch is not None:
        why = "launches a Triton kernel, which needs the addresses of its tensors; fake tensors have none"
        return f"{launch} {why}", _REGISTER_KERNEL
    found = unpredictable(error)
    if found is not None:
        return found, _REGISTER
    needs_numbers, operator = what_needs_numbers(error), higher_order_operator(error)
    if needs_numbers is not None:
        return f"{needs_numbers} needs values, and fake tensors have none", _REMEDY
    if operator is not None:
        return f"{operator} is created by compiling a function, which runs it", _MEASURE_ONLY
    return None


def _is_of_fake_tensors(error: Exception) -> bool:
    """Whether an error is due to fake tensors: real tensors would not have raised it."""
    from perflab.predicted.cuda.fake_errors import unpredictable, what_needs_numbers

    return any(about(error) is not None for about in (what_needs_numbers, unpredictable, line_of_launch))


_DEVICE = "device"
"""The name of the device's fixture. Values made from a device differ by device, even if they hold no tensor."""


def _matters(fixture: Any) -> bool:
    """Whether the fixture's value differs between fake and real tensors.

    True of a value that holds tensors or is a device, of the device's fixture, and of an error, which fake tensors may
    have caused.
    """
    import torch

    value, _, error = fixture.cached_result
    if error is not None or isinstance(value, torch.device) or fixture.argname == _DEVICE:
        return True
    return any(isinstance(one, torch.Tensor) for one in reachable((value,)))
