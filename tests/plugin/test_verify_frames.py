"""What a user sees of a kernel that is wrong: the report and the line of the test, none of our frames."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import run_pytest

WRONG = """
import torch
from perflab.correctness import verify

def inputs(seed):
    return {"x": torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))}

def test_wrong():
    verify(lambda x: x.exp() + 1, inputs, reference=torch.exp, plain=torch.exp)

def test_raises():
    verify(lambda x: x.nothing, inputs, reference=torch.exp, plain=torch.exp)
"""


def test_a_failure_of_verify_shows_the_test_and_the_report_and_no_frame_of_ours(
    pytester: pytest.Pytester, python: str
) -> None:
    pytester.makepyfile(WRONG)
    result = run_pytest(pytester, python, "-p", "no:cacheprovider", failed=2)
    result.stdout.fnmatch_lines(["*> *verify(lambda x: x.exp() + 1,*", "E *out is wrong*", "*AttributeError*"])
    assert "perflab/correctness" not in str(result.stdout).replace(str(pytester.path), "")
