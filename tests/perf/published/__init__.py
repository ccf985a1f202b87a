"""What others measured on the models' work, by what it was measured on. README.md has the sources.

Seconds, as `perf.quote` takes them.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

_BATCH_SIZE = 4
_SIZES = {(768, 12): "small", (1024, 24): "medium", (1280, 36): "large", (1600, 48): "xl", (2560, 32): "2.7B"}
"""Names of the sizes in files that give dimensions: (d_model, num_layers)."""
Quotes = dict[str, float]
"""Source -> seconds."""


def rows(name: str) -> list[dict[str, str]]:
    """The rows of one file."""
    with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def transformer_quotes(model: str, batch_size: int, context_length: int, precision: str, mode: str) -> Quotes:
    """What is known of the same model, shape, precision and pass: `forward`, `forward_backward` or `train_step`."""
    if batch_size != _BATCH_SIZE:
        return {}
    return dict(_transformer().get((model, context_length, precision, mode), {}))


def warmup_quotes(model: str, warmup_steps: int) -> Quotes:
    """Mean and first of the timed steps after so many of warm-up: forward and backward, batch 4, 128 tokens, fp32."""
    if model != "small":
        return {}
    for row in rows("a100_40gb_warmup_small.csv"):
        if int(row["warmup_steps"]) == warmup_steps:
            mean_s, first_s = float(row["mean_ms"]) / 1e3, float(row["first_step_ms"]) / 1e3
            return {"A100 mean": mean_s, "A100 first": first_s}
    return {}


@cache
def attention_rows() -> dict[tuple[int, int], dict[str, tuple[float, float]]]:
    """Seconds of one forward and one backward by variant, by (d_model, seq_len): causal, one head, batch 8, fp32."""
    found = {}
    for row in rows("h100_attention_naive_and_compiled.csv"):
        each = {}
        for variant in ("eager", "compiled", "compiled_tf32"):
            forward, backward = row[f"{variant}_forward_s_per_100"], row[f"{variant}_backward_s_per_100"]
            if forward and backward:
                each[variant] = (float(forward) / 100, float(backward) / 100)
        found[int(row["d_model"]), int(row["seq_len"])] = each
    return found


@cache
def _transformer() -> dict[tuple[str, int, str, str], Quotes]:
    found: dict[tuple[str, int, str, str], Quotes] = {}
    for row in rows("a100_40gb_transformer_fp32.csv"):
        for mode in ("forward", "forward_backward"):
            key = (row["model"], 128, "fp32", mode)
            found.setdefault(key, {})["A100"] = float(row[f"{mode}_mean_ms"]) / 1e3
    for row in rows("a100_40gb_nvtx_forward_backward.csv"):
        key = (row["model"], int(row["context_length"]), "fp32", "forward_backward")
        found.setdefault(key, {})["A100 ranges"] = float(row["step_ms"]) / 1e3
    for row in rows("h100_transformer_train_step.csv"):
        model = _SIZES[int(row["d_model"]), int(row["num_layers"])]
        ways = {"H100": "eager_s", "H100 compiled": "compiled_s", "H100 compiled, TF32": "compiled_tf32_s"}
        quotes = {source: float(row[column]) for source, column in ways.items()}
        found.setdefault((model, int(row["context_length"]), "fp32", "train_step"), {}).update(quotes)
    return found


def all_reduce_quotes(size: str, world_size: int) -> Quotes:
    """What an all-reduce over gloo of a float32 array took on one machine, by its size ("10MB") and processes."""
    for row in rows("cpu_gloo_all_reduce.csv"):
        if row["size"] in (size, size.replace("GB", "000MB")) and f"world_{world_size}_s" in row:
            return {"gloo on one machine": float(row[f"world_{world_size}_s"])}
    return {}
