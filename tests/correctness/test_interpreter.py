"""Triton's interpreter with the tests' shortcuts computes and checks what it does without them."""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are compiled here")

from triton import language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

MOST = torch.iinfo(torch.int32).max


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def add_one(x_ptr, size: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, size)
    tl.store(x_ptr + at, tl.load(x_ptr + at) + 1)


def test_integers_wrap_around_where_nobody_debugs() -> None:
    x = torch.tensor([MOST, 1, -5, MOST - 1], dtype=torch.int32)
    add_one[(1,)](x, size=4)
    assert x.tolist() == [-MOST - 1, 2, -4, MOST]


def test_an_overflow_is_found_where_somebody_debugs(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = interpreter.interpreter_builder
    monkeypatch.setattr(builder, "options", dataclasses.replace(builder.options, debug=True))
    with pytest.raises(Exception, match="int32 overflow detected"):
        add_one[(1,)](torch.tensor([MOST, 1, 2, 3], dtype=torch.int32), size=4)
