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


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def combine(x_ptr, y_ptr, out_ptr, wide_ptr, rows: tl.constexpr, columns: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column = tl.arange(0, rows), tl.arange(0, columns)
    x, y = tl.load(x_ptr + row), tl.load(y_ptr + column)
    at = row[:, None] * columns + column  # two ranks
    tl.store(out_ptr + at, (2 * x[:, None] - 1) * y[None, :])
    tl.store(wide_ptr + at, x[:, None] / (y + 0.5)[None, :])  # short floats are divided as long ones


def test_shapes_and_types_meet_as_in_pytorch() -> None:
    x = torch.tensor([0.5, -3.0, 7.25, 1.0], dtype=torch.float16)
    y = torch.tensor([3.0, 0.25], dtype=torch.float16)
    out, wide = torch.empty(4, 2, dtype=torch.float16), torch.empty(4, 2)
    combine[(1,)](x, y, out, wide, rows=4, columns=2)
    assert torch.equal(out, (2 * x[:, None] - 1) * y)
    assert torch.equal(wide, x.float()[:, None] / (y + 0.5).float())


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def misfit(out_ptr):  # type: ignore[no-untyped-def]
    tl.store(out_ptr + tl.arange(0, 4), tl.arange(0, 4) + tl.arange(0, 2))


def test_shapes_that_do_not_meet_are_refused() -> None:
    with pytest.raises(Exception, match="incompatible dimensions at index 0: 4 and 2"):
        misfit[(1,)](torch.empty(4, dtype=torch.int32))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def multiply(a_ptr, b_ptr, wide_ptr, out_ptr, short_ptr, size: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column = tl.arange(0, size)[:, None], tl.arange(0, size)[None, :]
    a, b = tl.load(a_ptr + row * size + column), tl.load(b_ptr + row * size + column)
    tl.store(wide_ptr + row * size + column, a.to(tl.float32))
    out = tl.dot(a.to(tl.float32), tl.trans(b).to(tl.float32), input_precision="ieee")
    tl.store(out_ptr + row * size + column, out)
    tl.store(short_ptr + row * size + column, out.to(tl.bfloat16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_dot_is_of_the_numbers_that_were_given_and_bfloat16_is_float32s_upper_half(dtype: torch.dtype) -> None:
    a, b = (torch.randn(16, 16, generator=torch.Generator().manual_seed(n)).to(dtype) for n in range(2))
    a[0, 0], b[0] = 1e-39, 0.0  # subnormal where the dtype has a number for it
    wide, out, short = torch.empty(16, 16), torch.empty(16, 16), torch.empty(16, 16, dtype=torch.bfloat16)
    multiply[(1,)](a, b, wide, out, short, size=16)
    is_normal = a.float().abs() >= torch.finfo(torch.float32).tiny  # of others Triton makes other numbers
    assert torch.equal(wide[is_normal].view(torch.int32), a.float()[is_normal].view(torch.int32))
    torch.testing.assert_close(out, (a.double() @ b.double().T).float(), rtol=1e-5, atol=1e-5)
    assert torch.equal(short.view(torch.int16), (out.view(torch.int32) >> 16).short())
