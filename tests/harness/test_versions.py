"""Which environments ``make versions`` builds, and how it reads what pytest says."""

import tomllib

from syrupy.assertion import SnapshotAssertion

from perflab.internals.lookup import TORCH, TRITON
from tests.studies.versions import ROOT, Row, failures_in, lowest, minors, table


def test_the_lowest_versions_are_those_that_the_project_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = dict(one.split("==") for one in lowest(project))
    assert found["torch"] == "{}.{}.0".format(*TORCH.oldest)
    assert found["triton"] == "{}.{}.0".format(*TRITON.oldest)
    assert {"pytest", "pytest-xdist", "pytest-benchmark", "msgspec", "filelock", "numpy", "jinja2"} <= {*found}
    assert all(version.count(".") == 2 for version in found.values())


def test_each_minor_version_in_the_range_is_tried_in_its_newest_release() -> None:
    listed = ["2.14.1", "2.13.0+cpu", "2.13.0", "2.12.1", "2.12.0", "2.11.0", "2.10.0", "2.9.1", "2.13.0rc1"]
    assert minors(listed, (2, 11), (2, 13)) == ["2.11.0", "2.12.1", "2.13.0"]


def test_what_failed_stands_below_its_environment(snapshot: SnapshotAssertion) -> None:
    failed = failures_in("FAILED tests/a.py::test_x[1] - assert\nERROR tests/b.py\n1 failed, 2 passed in 3s\n")
    assert failed == ["tests/a.py::test_x[1]", "tests/b.py"]
    rows = [Row("lowest", "3.11.7", {"passed": 2, "failed": 1}, 3.0, failed), Row("x", "p", {}, 0.1, [])]
    assert table(rows).splitlines()[1:4] == snapshot
