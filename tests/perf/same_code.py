"""A control of tables: rows of the same code, beside whatever else runs here. How many intervals hold 1.00?

    python -m tests.perf.same_code [RUNS]

Each run measures twelve tables of two rows, six kinds of work in two sizes, one thread each. A table counts where its
rows took turns. The medians, which were taken one after another, stand beside it: what a table showed without turns.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

TABLES = """
import pytest
import torch

torch.set_num_threads(1)

def product(size):
    x = torch.rand(size, size)
    return lambda: x @ x

def softmax(size):
    x = torch.rand(size, size)
    return lambda: torch.softmax(x, -1)

def attention(size):
    q = torch.rand(2, 4, size // 2, 32)
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q)

def small_operators(size):
    x = torch.rand(16, requires_grad=True)
    def call():
        y = x
        for _ in range(size // 8):
            y = y * 1.01
        y.sum().backward()
    return call

def python(size):
    return lambda: sum(n * n for n in range(10 * size))

def allocation(size):
    return lambda: torch.ones(size, size, 8).sum()

@pytest.mark.perf(side_by_side="twin")
@pytest.mark.parametrize("size", [128, 256])
@pytest.mark.parametrize("work", [product, softmax, attention, small_operators, python, allocation])
@pytest.mark.parametrize("twin", ["one", "other"])
def test_same(perf, work, size, twin):
    perf(work(size))
"""


def one_run(number: int) -> list[tuple[str, float, dict[str, float] | None]]:
    """Each table's rows: their name, the ratio of their medians, and what turns gave, if they did."""
    with tempfile.TemporaryDirectory(prefix="perflab-same-") as name:
        folder = Path(name)
        (folder / "test_same.py").write_text(TABLES)
        (folder / "pytest.ini").write_text("[pytest]\n")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "perflab.plugin", "-m", "perf", "--perf-check=off"]
        command += ["--perf-json=run.json", "--perf-budget=1", "-p", "no:cacheprovider"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"run {number} failed:\n{done.stdout}{done.stderr}")
        results = json.loads((folder / "run.json").read_text())["results"]
        return [
            (one["case"], one["outcome"]["summary"]["median_ns"] / turns["base_ns"], turns.get("call"))
            for one in results
            for turns in one.get("beside", ())
        ]


def main() -> None:
    """Print each table as it comes, and the counts."""
    holding = apart = 0
    widths: list[float] = []
    for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
        for case, medians, ratio in one_run(number):
            told = f"{ratio['value']:.3f} ({ratio['low']:.3f}…{ratio['high']:.3f})" if ratio else "nothing"
            print(f"{case}: medians ×{medians:.3f}, in turns {told}")
            if ratio:
                holding += ratio["low"] <= 1.0 <= ratio["high"]
                apart += 1 / 1.02 <= medians <= 1.02
                widths.append(ratio["high"] / ratio["low"] - 1)
        print(
            f"{holding} of {len(widths)} intervals hold 1.00, median width {median(widths or [0.0]):.1%}; medians were "
            f"within 2% of each other in {apart}",
            flush=True,
        )


if __name__ == "__main__":
    main()
