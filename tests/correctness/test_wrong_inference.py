"""Each cache, sampler and scheduler that is wrong on purpose is found, and the failure says where it goes wrong."""

from __future__ import annotations

import pytest

from tests.correctness.wrong_inference import WRONG, WrongInference

pytestmark = pytest.mark.correctness


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_mistake_in_inference_is_found(wrong: WrongInference, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        wrong.put_in_place(patched)
        with pytest.raises((AssertionError, ValueError, RuntimeError), match=wrong.words):
            wrong.check()
    wrong.check()  # and without the mistake it passes
