"""Sets up fixtures again that outlive a test, where fake and real tensors would mix.

A model of a module-scoped fixture is of no use to a test of numerics if a predicted case requested the fixture first,
and of little use the other way round. So such a fixture is torn down, with all fixtures made from it, before the next
test requests it, as pytest does with fixtures whose parameter changes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from perflab.reachable import reachable

_DEVICE = "device"
"""The name of the device's fixture. Values made from a device differ by device, even if they hold no tensor."""


class MadeAnew:
    """Records which fixtures were made while tensors were fake, and tears down those that a test cannot use.

    Args:
        fake: returns a context with fake tensors; fixtures made in such a context are torn down in one.
    """

    def __init__(self, fake: Callable[[], AbstractContextManager[None]]) -> None:
        self._fake = fake
        self._fake_ones: weakref.WeakSet[Any] = weakref.WeakSet()

    def note(self, fixture: pytest.FixtureDef[Any], *, is_fake: bool) -> None:
        """Record whether a fixture that is about to be made sees fake tensors."""
        (self._fake_ones.add if is_fake else self._fake_ones.discard)(fixture)

    def clear(self, item: pytest.Item, *, is_fake: bool) -> None:
        """Tear down the fixtures that a test cannot use: pytest makes a fixture anew when a test requests it."""
        if not is_fake and not self._fake_ones:
            return
        info = getattr(item, "_fixtureinfo", None)
        request: Any = getattr(item, "_request", None)
        if info is None or request is None:
            return
        for fixture in [one for found in info.name2fixturedefs.values() for one in found]:
            was_fake = fixture in self._fake_ones
            if fixture.cached_result is not None and was_fake is not is_fake and _matters(fixture):
                with self._fake() if was_fake else nullcontext():
                    fixture.finish(request)


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
