"""Makes ``docs/report.png``, the picture of a report that README shows: ``python -m tests.harness.picture [RESULTS]``.

Without a results file it makes one: of a small model, in a repository of its own, the activation is written out by
hand, and its tests compare the commit with the one before. RESULTS draws from what such a run, or any, wrote.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from perflab.cli import main
from tests.harness.browser import chromium, opened

OUTPUT = Path("docs/report.png")
WIDTH, HEIGHT = 1080, 820
REMOTE = "https://github.com/example/model.git"
MODEL = """\
import torch
from torch import nn
from torch.nn import functional as F


def gelu(x):
    return F.gelu(x, approximate="tanh")


class Block(nn.Module):
    def __init__(self, width=256, heads=8):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norm_2(x))))


class Model(nn.Module):
    def __init__(self, vocabulary=1024, width=256, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""
TESTS = """\
import pytest
import torch
from model import Model
from torch.nn import functional as F


@pytest.fixture
def tokens():
    return torch.randint(1024, (4, 128))


def test_step(perf, tokens):
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    perf.step(
        forward=lambda: F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()),
        backward=lambda loss: loss.backward(),
        optimizer=lambda: (optimizer.step(), optimizer.zero_grad()),
    )


@torch.no_grad()
def test_forward(perf, tokens):
    perf(Model(), tokens)


@pytest.mark.parametrize("length", [128, 512])
def test_attention(perf, length):
    q, k, v = torch.randn(3, 4, 8, length, 32)
    perf(F.scaled_dot_product_attention, q, k, v, is_causal=True)


def test_embedding(perf, tokens):
    perf(torch.nn.Embedding(1024, 256), tokens)
"""
CHANGE = (
    'F.gelu(x, approximate="tanh")',
    "0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))",
)


def make_results(folder: Path) -> Path:
    """The results file of a run of the small model whose activation became slower; that takes minutes."""
    project = folder / "project"
    project.mkdir()
    (project / ".gitignore").write_text("__pycache__/\n")
    (project / "model.py").write_text(MODEL)
    (project / "test_model.py").write_text(TESTS)

    def run(*command: str) -> None:
        subprocess.run(command, cwd=project, check=False, stdout=sys.stderr)

    def commit(message: str) -> None:
        run("git", "add", ".")
        run("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", message)

    run("git", "init", "-q")
    run("git", "remote", "add", "origin", REMOTE)
    commit("The model")
    (project / "model.py").write_text(MODEL.replace(*CHANGE))
    commit("The activation as the paper writes it")
    results = folder / "perf.json"
    run(sys.executable, "-m", "pytest", "-m", "perf", "--perf-against=HEAD~1", f"--perf-json={results}")
    return results


def draw(results: Path, page: Path, output: Path) -> None:
    """The top of the results' page, which is written too, as a browser shows it."""
    if main(["report", str(results), "--format=html", f"--output={page}"]):
        raise SystemExit(f"{results} is no results file: make one with --perf-json")
    with chromium() as browser, opened(browser, page, viewport={"width": WIDTH, "height": HEIGHT}) as seen:
        seen.page.screenshot(path=str(output))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="?", type=Path, help="draw from this results file")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        draw(given.results or make_results(Path(made)), Path(made, "perf.html"), given.output)
