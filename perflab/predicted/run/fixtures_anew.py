"""Sets up fixtures again that outlive a test, where fake and real tensors would mix.

A model that a module's fixture makes once is of no use to a test of numerics if a predicted case was the first to ask
for it, and of little the other way round. pytest does the same with fixtures whose parameter changes: what was made is
taken down, with all that was made of it, before the next test asks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from perflab.reachable import reachable

_DEVICE = "device"
"""What is made of it is another thing on another device, though it hold no tensor."""


class MadeAnew:
    """Knows which fixtures were made while tensors were fake.

    Args:
        fake: within it tensors are fake; what was made so is taken down so.
    """

    def __init__(self, fake: Callable[[], AbstractContextManager[None]]) -> None:
        self._fake = fake
        self._fake_ones: weakref.WeakSet[Any] = weakref.WeakSet()

    def note(self, fixture: pytest.FixtureDef[Any], *, is_fake: bool) -> None:
        """A fixture is about to be made."""
        (self._fake_ones.add if is_fake else self._fake_ones.discard)(fixture)

    def clear(self, item: pytest.Item, *, is_fake: bool) -> None:
        """Take down what a test cannot use: pytest makes it anew when it is asked for."""
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
    """Whether tensors are in it, or the device they would be on; or an error, which may be one of fake tensors."""
    import torch

    value, _, error = fixture.cached_result
    if error is not None or isinstance(value, torch.device) or fixture.argname == _DEVICE:
        return True
    return any(isinstance(one, torch.Tensor) for one in reachable((value,)))
