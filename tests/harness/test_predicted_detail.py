"""One prediction in full."""

from __future__ import annotations

from typing import Any

from perflab.predicted.report.detail import prediction_detail
from tests.harness.make import GIB, cost, fit, part, prediction, saved


def test_one_prediction_in_full() -> None:
    product: dict[str, Any] = {"flops": 32 * 10**9, "bytes_moved": GIB, "roofline_ns": 2.0e6}
    twice = {name: 2 * amount for name, amount in product.items()}
    now = prediction(
        fit=fit(),
        held_bytes=36 * GIB,
        keeping_output_bytes=88 * GIB,
        allocated_bytes=89 * GIB,
        workspace_bytes=64 * 2**20,
        reserved_bytes=92 * GIB,
        traced_layers=[3, 4],
        costs=[
            cost("blocks.*.attention.q", "aten::mm", **product),
            cost("blocks.*.attention.q", "aten::mm", 64, phase="backward", **twice),
            cost("", "aten::_foreach_add_", 1, bytes_moved=4 * GIB, roofline_ns=2.0e6, phase="optimizer"),
        ],
        roofline_ns=8.0e6,
    )
    assert (
        "\n".join(prediction_detail(now))
        == """
peak memory 87.0 GiB, 36.0 GiB of it before the call
  32.0 GiB  36.8%  activations
  24.0 GiB  27.6%  optimizer state
  12.0 GiB  13.8%  parameters
  12.0 GiB  13.8%  gradients
  7.00 GiB   8.0%  temporaries
about 89.0 GiB allocated · 64.0 MiB of that workspaces of cuBLAS
  about 92.0 GiB reserved · 88.0 GiB with the last result alive
fits h200 (139 GiB), b200 (177 GiB)

alive at the peak
      size  share blocks  what
  32.0 GiB  36.8%     32  activations of blocks.*.attention
                          aten::_softmax, model.py:42
  24.0 GiB  27.6%     64  optimizer state of blocks.*.attention.q
  12.0 GiB  13.8%     32  parameters of blocks.*.attention.q
  12.0 GiB  13.8%     32  gradients of blocks.*.attention.q
                          aten::mm, model.py:41
  7.00 GiB   8.0%      2  temporaries, aten::cat, train.py:12

saved for backward, 32.0 GiB in all
      size  count  what
  32.0 GiB     32  blocks.*.attention (4, 32, 1024, 1024) float32
                   aten::_softmax, model.py:42

by module             calls   FLOPs     bytes FLOP/B   time  fwd  bwd  opt
blocks.*.attention.q     96  96.0 G  3.00 GiB     30  75.0%  25%  50%    –
outside of modules        1       –  4.00 GiB      –  25.0%    –    –  25%
all                      97  96.0 G  7.00 GiB     13 100.0%  25%  50%  25%

by operator          calls   FLOPs     bytes FLOP/B   time  fwd  bwd  opt
aten::mm                96  96.0 G  3.00 GiB     30  75.0%  25%  50%    –
aten::_foreach_add_      1       –  4.00 GiB      –  25.0%    –    –  25%
all                     97  96.0 G  7.00 GiB     13 100.0%  25%  50%  25%

blocks.* is 32 layers · made of traces with 3 and 4 of them
  time is a share of the roofline's 8.00 ms"""
    )


def test_the_largest_ten_rows_are_told_and_what_the_others_come_to() -> None:
    now = prediction(
        at_peak=[part("activations", f"part{n}", "aten::mm", (20 - n) * GIB) for n in range(12)],
        saved=[saved(f"part{n}", [n + 1], (20 - n) * GIB) for n in range(11)],
        costs=[cost(f"part{n}", "aten::mm", 1, flops=10, roofline_ns=float(20 - n)) for n in range(13)],
    )
    text = prediction_detail(now)
    assert "alive at the peak, the largest 10 of 12" in text
    assert sum(line.endswith("GiB in all, the largest 10 of 11") for line in text) == 1
    at = next(n for n, line in enumerate(text) if line.startswith("by module"))
    assert [line.split()[0] for line in text[at + 1 : at + 13]] == [*(f"part{n}" for n in range(10)), "3", "all"]
    assert text[at + 11].split()[:3] == ["3", "more", "3"]


def test_a_forward_pass_has_no_columns_of_phases_and_no_table_of_what_is_kept() -> None:
    now = prediction(costs=[cost("", "aten::mm", 1, phase=""), cost("a", "aten::add", 1, phase="")], saved=[])
    text = "\n".join(prediction_detail(now))
    assert "fwd" not in text
    assert "saved for backward" not in text
    assert "time" in text


def test_no_line_of_it_is_wider_than_80_columns_whatever_the_names() -> None:
    long = "encoder.stages.*.residual.attention.projection_of_queries"
    operator = "aten::_scaled_dot_product_efficient_attention_backward"
    now = prediction(
        at_peak=[part("optimizer state", long, operator, GIB, 4, "perflab/lab/models/transformer.py:203")],
        saved=[saved(long, [4, 32, 1024, 1024], GIB, operator=operator, line="perflab/lab/attention/naive.py:45")],
        costs=[
            cost(long, operator, 123_456, flops=10**15, bytes_moved=GIB, roofline_ns=1.0, phase=phase)
            for phase in ("forward", "backward")
        ],
        fit=fit(fits_on=["l4", "a100-80gb", "h100", "h200", "b200"]),
    )
    assert max(len(line) for line in prediction_detail(now)) <= 80
