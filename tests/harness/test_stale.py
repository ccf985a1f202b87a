"""Which stored cases are certainly gone, and how little is needed for a doubt."""

from __future__ import annotations

from pathlib import Path

import pytest

from perflab.measured.records import Entry
from perflab.records import Environment
from perflab.store.stale import Collection, Function, Stored, find_stale
from tests.harness.make import entry, environment

HERE = environment()
MODULE = "t.test_x"
FILE = "t/test_x.py"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "t").mkdir()
    (tmp_path / FILE).write_text("def test_a(perf): pass\ndef test_n(perf, n): pass\n")
    return tmp_path


def function(name: str, *ids: str, **changes: object) -> Function:
    """A test function parametrized by marks alone, over ``n``."""
    cases = [f"{FILE}::{name}[{i}]" for i in ids] if ids else [f"{FILE}::{name}"]
    fields: dict[str, object] = {"cases": cases, "marked": ["n"] if ids else [], "arguments": ["perf", "n"]}
    return Function(**{**fields, **changes})  # type: ignore[arg-type]


def stale(
    root: Path, entries: dict[str, Entry], *functions: Function, is_ours: bool = True, machine: Environment = HERE
) -> list[str]:
    known = {f.cases[0].split("::", 1)[1].partition("[")[0]: f for f in functions}
    return find_stale(MODULE, as_stored(entries, machine), Collection(files={FILE: known}), root, is_ours=is_ours)


def as_stored(entries: dict[str, Entry], machine: Environment = HERE) -> dict[str, Stored]:
    return {name: Stored(one.parameters, one.environment == machine) for name, one in entries.items()}


def of(*names: str) -> dict[str, Entry]:
    """Entries whose parameter is what stands in brackets."""
    return {name: entry(parameters={"n": name.partition("[")[2].rstrip("]")} if "[" in name else {}) for name in names}


def test_a_function_that_is_gone_from_collection_and_text_is_stale(root: Path) -> None:
    assert stale(root, of("test_a", "test_gone", "TestX::test_a"), function("test_a")) == ["TestX::test_a", "test_gone"]


@pytest.mark.parametrize(
    "text",
    [
        "if 0:\n    def test_gone(): pass\n",
        "try:\n    import nothing\nexcept ImportError:\n    test_gone = None\n",
        "from elsewhere import test_gone\n",
        "async def test_gone(): pass\n",
    ],
)
def test_a_function_that_the_text_still_has_may_be_collected_elsewhere(root: Path, text: str) -> None:
    (root / FILE).write_text(text)
    assert stale(root, of("test_gone"), function("test_a")) == []


def test_the_name_in_another_class_or_in_a_comment_is_not_the_function(root: Path) -> None:
    (root / FILE).write_text("# test_gone\nclass TestX:\n    def test_gone(self): pass\n")
    assert stale(root, of("test_gone"), function("TestX::test_gone")) == ["test_gone"]


def test_a_parameter_that_its_marks_no_longer_give_is_stale(root: Path) -> None:
    assert stale(root, of("test_n[1]", "test_n[2]", "test_n[3]"), function("test_n", "1", "2")) == ["test_n[3]"]


@pytest.mark.parametrize(
    "changes",
    [
        {"generated": ["size"]},
        {"marked": []},
        {"is_complete": False},
    ],
    ids=["partly from a hook", "all from elsewhere", "no values on this machine"],
)
def test_a_parameter_that_is_not_in_marks_alone_may_come_back(root: Path, changes: dict[str, object]) -> None:
    assert stale(root, of("test_n[3]"), function("test_n", "1", **changes)) == []


def test_a_parameter_that_was_not_in_marks_when_it_was_stored_may_come_back(root: Path) -> None:
    stored = {"test_n[3-x]": entry(parameters={"n": 3, "size": "x"})}
    assert stale(root, stored, function("test_n", "1", arguments=["perf", "n", "size"])) == []
    assert stale(root, stored, function("test_n", "1")) == ["test_n[3-x]"]


def test_a_parameter_stored_on_another_machine_may_exist_there(root: Path) -> None:
    assert stale(root, of("test_n[3]"), function("test_n", "1"), machine=environment(cores=64)) == []


def test_an_id_of_unknown_parameters_is_left_alone(root: Path) -> None:
    assert stale(root, {"test_n[3]": entry()}, function("test_n", "1")) == []


def test_a_group_that_xdist_wrote_behind_a_case_is_no_other_case(root: Path) -> None:
    stored = {"test_a@gpu": entry(), "test_n[1]@gpu": entry(parameters={"n": 1})}
    assert stale(root, stored, function("test_a"), function("test_n", "1")) == []


def test_a_file_that_is_gone_takes_all_along_where_the_baselines_are_this_projects(root: Path) -> None:
    (root / FILE).unlink()
    assert stale(root, of("test_a", "test_b")) == ["test_a", "test_b"]
    assert stale(root, of("test_a", "test_b"), is_ours=False) == []


def test_a_file_that_was_not_seen_whole_leaves_all(root: Path) -> None:
    assert find_stale(MODULE, as_stored(of("test_gone")), Collection(), root, is_ours=True) == []


def test_two_files_that_share_their_baselines_must_both_have_been_seen(root: Path) -> None:
    (root / "t.test_x.py").write_text("def test_gone(): pass\n")
    assert stale(root, of("test_gone"), function("test_a")) == []
    both = Collection(files={FILE: {}, "t.test_x.py": {"test_gone": Function(cases=["t.test_x.py::test_gone"])}})
    entries = of("test_gone", "test_b")
    assert find_stale(MODULE, as_stored(entries), both, root, is_ours=True) == ["test_b"]
