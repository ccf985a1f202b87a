"""docs/writing-a-kernel.md is held to its word: its Python runs, and its kernel is the lab's."""

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.correctness, pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/writing-a-kernel.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_pages_python_runs_and_shows_a_right_kernel_and_a_wrong_one(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile("\n".join(blocks("python")), "docs/writing-a-kernel.md", "exec"), {"__name__": "page"})
    shown = capsys.readouterr().out
    assert shown.index("out is right") < shown.index("out is wrong: shape (97,), float32")


def test_the_pages_kernel_is_the_labs() -> None:
    source = (ROOT / "perflab/lab/kernels/triton_weighted_sum.py").read_text(encoding="utf-8")
    lines = [line for block in blocks("triton") for line in block.splitlines()]
    assert lines
    assert [line for line in lines if line not in source.splitlines()] == []
