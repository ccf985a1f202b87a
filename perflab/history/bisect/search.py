"""Bisection of a range of commits, of which some cannot be tried. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Side = Literal["good", "bad", "skipped"]
"""``good``: the old level; ``bad``: the new one; ``skipped``: the case does not run there."""


@dataclass(frozen=True)
class Standing:
    """What is known of a range."""

    suspects: Sequence[str]
    """Commits of which one brought the step, oldest first. The last is known to be bad."""
    next: str | None
    """What to try next; None: nothing is left that could tell more."""


def standing(commits: Sequence[str], tried: Mapping[str, Side]) -> Standing:
    """Where a bisection stands.

    Args:
        commits: what came after the good commit, up to the bad one, oldest first.
        tried: what is known of some of them. The last one is bad without being named here.
    """
    last = next((at for at, one in enumerate(commits) if tried.get(one) == "bad"), len(commits) - 1)
    first = next((at + 1 for at in reversed(range(last)) if tried.get(commits[at]) == "good"), 0)
    suspects = commits[first : last + 1]
    open_ones = [at for at in range(first, last) if commits[at] not in tried]
    middle = (first + last - 1) / 2
    return Standing(suspects, commits[min(open_ones, key=lambda at: abs(at - middle))] if open_ones else None)


def steps_left(many: int) -> int:
    """How many commits are still tried, about, if ``many`` are suspect."""
    return max(0, (many - 1).bit_length())
