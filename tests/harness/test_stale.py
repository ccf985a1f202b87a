"""Which stored cases are certainly gone, and how little is needed for a doubt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from perflab.store.stale import Collection, Missing, Stored, find_missing, moved_from

MODULE = "t.test_x"
FILE = "t/test_x.py"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "t").mkdir()
    (tmp_path / FILE).write_text("def test_a(perf): pass\ndef test_n(perf, n): pass\n")
    return tmp_path


def missing(
    root: Path, entries: Sequence[str], *collected: str, is_ours: bool = True, of_this_machine: bool = True
) -> Missing:
    stored = dict.fromkeys(entries, Stored(is_ours=of_this_machine))
    return find_missing(MODULE, stored, Collection(files={FILE: list(collected)}), root, is_ours=is_ours)


def stale(root: Path, entries: Sequence[str], *collected: str, is_ours: bool = True) -> list[str]:
    return missing(root, entries, *collected, is_ours=is_ours).stale


def test_a_function_that_is_gone_from_collection_and_text_is_stale(root: Path) -> None:
    assert stale(root, ["test_a", "test_gone", "TestX::test_a"], "test_a") == ["TestX::test_a", "test_gone"]


@pytest.mark.parametrize(
    "text",
    [
        "if 0:\n    def test_gone(): pass\n",
        "try:\n    import nothing\nexcept ImportError:\n    test_gone = None\n",
        "from elsewhere import test_gone\n",
        "async def test_gone(): pass\n",
        "def test_a(): pass\nlocals()['test_gone'] = test_a\n",
        "def test_a(): pass\nsys.modules[__name__].__dict__['test_gone'] = test_a\n",
    ],
)
def test_a_function_that_the_text_still_has_may_be_collected_elsewhere(root: Path, text: str) -> None:
    (root / FILE).write_text(text)
    assert stale(root, ["test_gone"], "test_a") == []


def test_a_name_that_a_class_inherits_or_has_itself(root: Path) -> None:
    (root / FILE).write_text(
        "class TestX(Base):\n    def test_a(self): pass\nclass TestY:\n    def test_a(self): pass\n"
    )
    collected = ("TestX::test_a", "TestY::test_a")
    assert stale(root, ["TestX::test_gone", "TestY::test_gone"], *collected) == ["TestY::test_gone"]
    (root / FILE).write_text("# test_gone\nclass TestX:\n    def test_gone(self): pass\n")
    assert stale(root, ["test_gone"], "TestX::test_gone") == ["test_gone"]


def test_a_parameter_that_is_not_collected_here_may_be_elsewhere(root: Path) -> None:
    """By a variable that is not set here, an option, or a machine with more GPUs."""
    entries = ["test_n[1]", "test_n[2]", "test_n[2] {cold}", "test_n"]
    assert missing(root, entries, "test_n[1]") == ([], ["test_n", "test_n[2]", "test_n[2] {cold}"])
    assert missing(root, entries, "test_n[1]", of_this_machine=False) == ([], []), "nor would it be met here"


def test_where_tests_are_generated_a_function_may_exist_elsewhere(root: Path) -> None:
    (root / FILE).write_text("for size in os.environ['SIZES']:\n    globals()[f'test_{size}'] = made(size)\n")
    assert missing(root, ["test_2"], "test_1") == ([], ["test_2"])


def test_a_group_that_xdist_wrote_behind_a_case_is_no_other_case(root: Path) -> None:
    assert missing(root, ["test_a@gpu", "test_n[1]@gpu"], "test_a", "test_n[1]") == ([], [])


def test_a_file_that_is_gone_takes_all_along_and_one_that_was_not_seen_whole_leaves_all(root: Path) -> None:
    assert find_missing(MODULE, {"test_gone": Stored(is_ours=True)}, Collection(), root, is_ours=True) == ([], [])
    (root / FILE).unlink()
    assert stale(root, ["test_a", "test_b"]) == ["test_a", "test_b"]
    assert stale(root, ["test_a", "test_b"], is_ours=False) == []


# --- moved and renamed tests ---------------------------------------------------------------------------------

BODY = "def {}(perf, n):\n    perf(work, n)\n"


def moved(case: str, gone: Sequence[str], **texts: str) -> str | None:
    """``texts``: of the file of a case, by the stem of its path; a ``_`` in front of it: as it was."""

    def text_of(one: str) -> str | None:
        stem = Path(one.split("::", 1)[0]).stem
        return texts.get(f"_{stem}" if one in gone else stem)

    return moved_from(case, gone, text_of)


@pytest.mark.parametrize(
    ("then", "now", "is_it"),
    [
        (BODY.format("test_n"), BODY.format("test_n"), True),
        ("import os\n" + BODY.format("test_n"), "@mark.slow\n# moved\n" + BODY.format("test_n"), True),
        (BODY.format("test_n"), BODY.format("test_n").replace("work", "rest"), False),
        (None, BODY.format("test_n"), True),
    ],
    ids=["the same", "the same but for decorators", "another body", "nobody knows"],
)
def test_a_case_of_the_same_name_and_code_in_another_file_is_the_one_that_is_gone(
    then: str | None, now: str, *, is_it: bool
) -> None:
    texts = {"new": now} | ({"_old": then} if then is not None else {})
    gone = ["t/old.py::test_n[2]", "t/old.py::test_n[1]", "t/old.py::test_n[1] {cold}"]
    assert moved("u/new.py::test_n[1]", gone, **texts) == ("t/old.py::test_n[1]" if is_it else None)
    assert moved("u/new.py::test_n[3]", gone, **texts) is None
    unknown = "t/older.py::test_n[1]"
    where_two_may_be_it = moved("u/new.py::test_n[1]", [*gone, unknown], **texts)
    assert where_two_may_be_it == (None if is_it else unknown)


def test_of_several_in_a_folder_that_was_renamed_it_is_the_one_whose_path_ends_alike() -> None:
    gone = ["old/k/a.py::test_n", "old/k/b.py::test_n", "old/a.py::test_n"]
    texts = dict.fromkeys(("_a", "_b", "a", "c"), BODY.format("test_n"))
    assert moved("new/k/a.py::test_n", gone, **texts) == gone[0]
    assert moved("new/k/c.py::test_n", gone, **texts) is None


def test_a_function_with_the_same_code_under_another_name_is_the_one_that_is_gone() -> None:
    texts = {"_x": BODY.format("test_old") + "def test_b(perf): pass\n", "x": BODY.format("test_new")}
    gone = ["x.py::test_old[1]", "x.py::test_old[2]", "x.py::test_b"]
    assert moved("x.py::test_new[2]", gone, **texts) == "x.py::test_old[2]"
    assert moved("x.py::test_new[3]", gone, **texts) is None
    assert moved("x.py::test_new[2]", gone, x=texts["x"]) is None, "nobody knows what its code was"
    assert moved("x.py::test_new[2]", gone, x=texts["x"], _x=texts["_x"].replace("work", "rest")) is None
