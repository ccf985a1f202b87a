"""A release: one version, in one place; GitHub takes the workflow that publishes it, which may do no more than that."""

from __future__ import annotations

import tomllib
from importlib.metadata import version

import pytest

import perflab
from tests.harness.release import ROOT, disagreement, version_here
from tests.plugin.test_workflow import accepted_by_github
from tests.plugin.workflows import jobs_of, read_workflow, unknown_names

WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"


def test_the_workflow_that_publishes_the_site_is_githubs() -> None:
    path = WORKFLOW.with_name("site.yml")
    assert accepted_by_github([path]).returncode == 0
    build, publish = jobs_of(read_workflow(path))
    assert [step["run"] for step in build["steps"] if "run" in step] == ["make site"]
    assert (publish["needs"], publish["permissions"]) == ("build", {"pages": "write", "id-token": "write"})


def test_version_and_changelog_agree() -> None:
    assert disagreement(version_here(), (ROOT / "CHANGELOG.md").read_text("utf-8")) is None


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"]["attr"] == "perflab.__version__"
    assert version_here() == perflab.__version__ == version("perflab")


@pytest.mark.parametrize(
    ("headings", "tag", "said"),
    [
        ("Unreleased", None, None),
        ("Unreleased 0.1.0", None, None),
        ("0.2.0 0.1.0", "v0.2.0", None),
        ("Unreleased 0.2.0", None, "0.2.0 is released, and more has changed since: raise perflab.__version__"),
        ("0.10.0 0.9.0", None, "CHANGELOG.md begins with 0.10.0, and perflab.__version__ is 0.2.0"),
        ("0.1.0 0.2.0", None, "put the newest first"),
        ("Unreleased 0.1.0", "v0.2.0", "write 0.2.0 and a date there"),
        ("0.2.0", "0.2.0", "the tag is 0.2.0, and perflab.__version__ is 0.2.0: tag v0.2.0"),
    ],
)
def test_what_keeps_a_version_from_being_released_is_said(headings: str, tag: str | None, said: str | None) -> None:
    changelog = "# Changelog\n\n" + "".join(f"## {one} (a date)\n\n- a change\n\n" for one in headings.split())
    found = disagreement("0.2.0", changelog, tag)
    assert (found is None) if said is None else (said in str(found))


def test_the_workflow_that_publishes_is_githubs_and_only_its_last_job_may_publish() -> None:
    assert accepted_by_github([WORKFLOW]).returncode == 0
    workflow = read_workflow(WORKFLOW)
    build, publish = jobs_of(workflow)
    assert workflow["on"] == {"push": {"tags": ["v*"]}}
    assert (workflow["permissions"], build.get("permissions")) == ({"contents": "read"}, None)
    assert (publish["permissions"], publish["needs"]) == ({"id-token": "write"}, "build")
    assert [step["run"] for step in build["steps"] if "run" in step] == [
        'python -m tests.harness.release "$GITHUB_REF_NAME"',
        "make release",
    ]
    assert not any("run" in step for step in publish["steps"])
    assert unknown_names(workflow) == []
