"""``make release``: whether the version, the changelog and a tag agree. ``python -m tests.harness.release v0.1.0``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def disagreement(version: str, changelog: str, tag: str | None = None) -> str | None:
    """What keeps this version from being built or, with a tag, from being published; None: nothing."""
    headings = re.findall(r"^## (\S+)", changelog, flags=re.M)
    released = [heading for heading in headings if heading != "Unreleased"]
    newest = released[0] if released else None
    if released != sorted(released, key=_numbers, reverse=True):
        return f"CHANGELOG.md has versions in the order {', '.join(released)}: put the newest first"
    if headings[0] == "Unreleased":
        if newest is not None and _numbers(newest) >= _numbers(version):
            return f"{newest} is released, and more has changed since: raise perflab.__version__ from {version}"
        if tag is not None:
            return f"CHANGELOG.md begins with Unreleased: write {version} and a date there, and tag that commit"
    elif newest != version:
        return f"CHANGELOG.md begins with {newest}, and perflab.__version__ is {version}: make them the same"
    if tag is not None and tag != f"v{version}":
        return f"the tag is {tag}, and perflab.__version__ is {version}: tag v{version}"
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))


def version_here() -> str:
    """``perflab.__version__``, without importing anything that has to be installed."""
    (found,) = re.findall(r'^__version__ = "(.+)"', (ROOT / "perflab/__init__.py").read_text("utf-8"), flags=re.M)
    return str(found)


if __name__ == "__main__":
    sys.exit(disagreement(version_here(), (ROOT / "CHANGELOG.md").read_text("utf-8"), *sys.argv[1:]))
