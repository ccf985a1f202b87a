"""docs/files.md names every file of the package, and README and workflows install perflab from where it is."""

from __future__ import annotations

import re
from pathlib import Path

from tests.harness.file_map import PAGE, drawn

ROOT = Path(__file__).parents[2]


def test_the_map_of_files_is_todays() -> None:
    assert PAGE.read_text(encoding="utf-8") == drawn(), "write it anew: make map"


def test_it_is_installed_from_the_repository_as_long_as_no_index_has_it() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    workflows = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("github-workflow*.yml")]
    named = [
        re.findall(r"(\S*perflab\[[^]]*\])(.*)", text) for text in (readme.split("## In your project")[1], *workflows)
    ]
    assert len(named) == 5
    for found in named:
        assert found
        for name, rest in found:
            assert name.strip("\"'").startswith("./") or rest.startswith(" @ git+https://")
