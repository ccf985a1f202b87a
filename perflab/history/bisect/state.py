"""What a bisection has found so far, and tries next; in `.perflab/bisect.json`, so that an interrupted one resumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perflab.data import Data, to_readable_json
from perflab.errors import PerflabError
from perflab.files import read_regular, write_whole
from perflab.plugin.session.folder import own_folder
from perflab.reading import decoded

Side = Literal["good", "bad", "skipped"]
"""``good``: the old level; ``bad``: the new one; ``skipped``: the case does not run there."""
SCHEMA = 1
PLACE = Path(".perflab/bisect.json")


class Trial(Data, frozen=True):
    """What one commit showed."""

    commit: str
    side: Side
    said: str
    """The evidence, in words."""


class State(Data, frozen=True):
    """One bisection: what it is about, and what was tried."""

    schema: int
    case: str
    quantity: str
    good: str
    bad: str
    options: str
    """What else pytest was given: numbers of other options are other numbers."""
    old: float | None = None
    """The old level, of an exact quantity."""
    new: float | None = None
    ratio: float | None = None
    """New over old, as the ends showed it."""
    ends: str = ""
    """What the ends showed, in words; empty: they have not been compared yet."""
    trials: list[Trial] = []


class StateError(PerflabError):
    """A state file that cannot be read."""


def resumed(wanted: State, root: Path) -> State:
    """What is known of this very bisection; ``wanted`` itself if the last one was another, or there was none.

    Raises:
        StateError: the file is damaged.
    """
    try:
        raw = read_regular(root / PLACE)
    except FileNotFoundError:
        return wanted
    except OSError as error:
        raise StateError(f"cannot read {root / PLACE}: {error.strerror}", "remove it") from error
    found = decoded(
        raw,
        State,
        newest=SCHEMA,
        file=str(root / PLACE),
        wanted="a state of perflab history --bisect",
        remedy="remove it: the bisection then starts again",
        error=StateError,
    )
    same = ("case", "quantity", "good", "bad", "options")
    return found if all(getattr(found, name) == getattr(wanted, name) for name in same) else wanted


def keep(state: State, root: Path) -> None:
    """Write the state.

    Raises:
        OSError: it cannot be written.
    """
    own_folder(root)
    write_whole(root / PLACE, to_readable_json(state).encode())


@dataclass(frozen=True)
class Standing:
    """What is known of a range."""

    suspects: Sequence[str]
    """Commits of which one brought the step, oldest first. The last is known to be bad."""
    next: str | None
    """What to try next; None: nothing is left that could tell more."""


def standing(commits: Sequence[str], tried: Mapping[str, Side]) -> Standing:
    """Where a bisection stands.

    ``commits`` came after the good one, up to the bad one, oldest first. The last is bad without being in ``tried``.
    """
    last = next((at for at, one in enumerate(commits) if tried.get(one) == "bad"), len(commits) - 1)
    first = next((at + 1 for at in reversed(range(last)) if tried.get(commits[at]) == "good"), 0)
    suspects = commits[first : last + 1]
    open_ones = [at for at in range(first, last) if commits[at] not in tried]
    middle = (first + last - 1) / 2
    return Standing(suspects, commits[min(open_ones, key=lambda at: abs(at - middle))] if open_ones else None)
