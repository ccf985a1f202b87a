"""The evidence of a bisection so far, and the commit to try next.

``.perflab/bisect.json`` keeps the evidence, so that an interrupted bisection resumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perflab.base.data import Data, to_readable_json
from perflab.base.errors import PerflabError
from perflab.base.files import read_regular, write_whole
from perflab.base.reading import decoded
from perflab.running.config.folder import own_folder

Side = Literal["good", "bad", "skipped"]
"""Side of a commit. ``good``: the old level; ``bad``: the new level; ``skipped``: the case does not run there."""
SCHEMA = 1
PLACE = Path(".perflab/bisect.json")


class Trial(Data, frozen=True):
    """The result of trying one commit."""

    commit: str
    side: Side
    said: str
    """The evidence, in words."""


class State(Data, frozen=True):
    """One bisection: its question, the levels at its ends, and the commits tried so far."""

    schema: int
    case: str
    quantity: str
    good: str
    bad: str
    options: str
    """Further options for pytest, then the build command. Numbers measured with other options are not reused."""
    old: float | None = None
    """The old level of an exact quantity; None for a time, and until the ends have been compared."""
    new: float | None = None
    ratio: float | None = None
    """New level / old level of a time, as measured at the ends; None for an exact quantity."""
    ends: str = ""
    """The evidence from the ends, in words; empty: the ends have not been compared yet."""
    trials: list[Trial] = []


class StateError(PerflabError):
    """Raised for a state file that cannot be read."""


def resumed(wanted: State, root: Path) -> State:
    """Return the saved state of this very bisection; ``wanted`` itself if no state, or another one's, is saved.

    Raises:
        StateError: the file is damaged, or cannot be read.
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
        schema=SCHEMA,
        file=str(root / PLACE),
        wanted="a state of perflab history --bisect",
        remedy="remove it: the bisection then starts again",
        error=StateError,
    )
    same = ("case", "quantity", "good", "bad", "options")
    return found if all(getattr(found, name) == getattr(wanted, name) for name in same) else wanted


def keep(state: State, root: Path) -> None:
    """Write the state to ``.perflab/bisect.json``.

    Raises:
        OSError: the file cannot be written.
    """
    own_folder(root)
    write_whole(root / PLACE, to_readable_json(state).encode())


@dataclass(frozen=True)
class Standing:
    """The commits that may have caused the step, and the commit to try next."""

    suspects: Sequence[str]
    """The commits of which one caused the step, oldest first. The last of them is known to be bad."""
    next: str | None
    """The commit to try next; None: no untried commit is left that could narrow the range."""


def standing(commits: Sequence[str], tried: Mapping[str, Side]) -> Standing:
    """Return where a bisection stands: the suspects, and the commit to try next.

    ``commits`` are those after the good commit up to the bad commit, oldest first. The last one is bad without being
    in ``tried``.
    """
    last = next((at for at, one in enumerate(commits) if tried.get(one) == "bad"), len(commits) - 1)
    first = next((at + 1 for at in reversed(range(last)) if tried.get(commits[at]) == "good"), 0)
    suspects = commits[first : last + 1]
    open_ones = [at for at in range(first, last) if commits[at] not in tried]
    middle = (first + last - 1) / 2
    return Standing(suspects, commits[min(open_ones, key=lambda at: abs(at - middle))] if open_ones else None)
