"""What a bisection has found so far, in `.perflab/bisect.json`, so that an interrupted one resumes."""

from __future__ import annotations

from pathlib import Path

import msgspec

from perflab.data import Data, to_json
from perflab.errors import PerflabError
from perflab.files import read_regular, write_whole
from perflab.history.bisect.search import Side
from perflab.plugin.session.folder import own_folder
from perflab.reading import decoded

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
    write_whole(root / PLACE, msgspec.json.format(to_json(state), indent=1) + b"\n")
