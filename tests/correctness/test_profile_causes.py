"""What the table of changes calls right: the operator, the module, the line and the time of what was added."""

from __future__ import annotations

import inspect

import pytest

from perflab.results.profile import Explanation, Part, Profile, ProfileRow
from tests.correctness.functions import function_at
from tests.studies import profile_faults
from tests.studies.profile_causes import is_right
from tests.studies.profile_faults import FAULTS, HERE

ADDED = next(one for one in FAULTS if one.name == "a large operator beside small ones")
MODULE = ADDED.modules[0]
FILE = HERE.removesuffix(":")


def line_of(function: object) -> str:
    """Its last line."""
    code, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return f"{FILE}:{first + len(code) - 1}"


NEW, OLD = line_of(profile_faults.beside(1)), line_of(profile_faults.written_out_silu)


def test_a_line_is_told_by_the_innermost_function_around_it() -> None:
    assert (function_at(NEW), function_at(OLD)) == (f"{HERE}beside.run", f"{HERE}written_out_silu")
    assert function_at(f"{FILE}:1") == HERE
    assert function_at("") == ""


@pytest.mark.parametrize("fault", [one for one in FAULTS if one.place.startswith(HERE)], ids=lambda one: one.name)
def test_every_change_of_the_lab_s_model_has_the_function_that_makes_it(fault: profile_faults.Fault) -> None:
    path, _, inner = fault.place.removeprefix(HERE).partition(".")
    assert inner in inspect.getsource(getattr(profile_faults, path))


@pytest.mark.parametrize(
    ("line", "change_ns", "module", "expected"),
    [
        (NEW, 2e6, MODULE, True),
        (NEW, 2.1e6, MODULE, True),  # with PyTorch's own work there
        (OLD, 2e6, MODULE, False),
        (NEW, 2e5, MODULE, False),  # the mean of old and new ones
        (NEW, 4e6, MODULE, False),
        (NEW, 2e6, "head", False),
    ],
)
def test_a_part_is_right_with_its_own_line_and_time(line: str, change_ns: float, module: str, expected: bool) -> None:
    rows = [
        ProfileRow(category=category, operator=name, module=MODULE, line=where, instances=2, time_ns=time_ns)
        for category, name, where, time_ns in (
            ("element-wise and norms", "aten::mul", NEW, 2e6),
            ("element-wise and norms", "aten::mul", OLD, 1e6),
            ("dispatch", "aten::empty", "", 5e4),
        )
    ]
    head = Profile(device="cpu", calls=4, timer_ns=9e6, profiled_ns=9e6, rows=rows)
    part = Part(change_ns=change_ns, operator="aten::mul", module=module, line=line, more=2)
    assert is_right(ADDED, Explanation(base="main", parts=[part]), head) is expected
