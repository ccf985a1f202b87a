"""One baseline file: JSON that is checked field by field on reading, fit for review as a diff, never half written.

A file that cannot be understood is an error that names the file, the place and the remedy; it is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any

from msgspec import Meta, structs

from perflab.data import Data, Parameters, to_plain
from perflab.environment import slug
from perflab.errors import BaselineError
from perflab.measure.records import CALIBRATION_BEFORE, OutOfMemory, Replicate
from perflab.measured.records import Accepted, Anchor, Entry, MemoryAnchor
from perflab.profiles.records import Profile
from perflab.reading import rename_key
from perflab.records import Environment
from perflab.store.json_files import as_json, named, read_checked, writable, write_text

SCHEMA, TIMES_ALONE = 4, 2
"""1: memory and counts stood with the times, and machines of one processor shared them. 2 and before called
``calibration_ns`` ``yardsticks_ns``. 3 and before: a case had times of one environment. All are still read."""
Variants = tuple[Entry, ...]
"""A case's times, by environment: machines of one folder may differ in versions and in the number of threads."""


class StoredCase(Data, frozen=True):
    """An entry as it stands in a file: ``environment`` is the name of one of the file's."""

    environment: str
    recorded: str
    replicates: list[Replicate]
    parameters: Parameters = {}
    out_of_memory: OutOfMemory | None = None
    anchor: Anchor | None = None
    memory_anchor: MemoryAnchor | None = None
    accepted: list[Accepted] = []
    noisy: list[str] = []
    commit: str | None = None
    profile: Profile | None = None


class BaselineFile(Data, frozen=True):
    """One file. Environments stand once, and cases name theirs, so that a case reads as one short block."""

    schema: int
    environments: dict[str, Environment]
    cases: dict[str, StoredCase | Annotated[list[StoredCase], Meta(min_length=1)]]
    """A case that has times of several environments is a list."""


def read_file(path: Path) -> dict[str, Variants]:
    """All entries of a file, by the cases' names; none if there is no such file.

    Raises:
        BaselineError: the file cannot be read, is no JSON, or is not one of ours.
    """
    remedy = "restore it (git checkout), or delete it and run with --perf-update-new"
    file = read_checked(path, BaselineFile, SCHEMA, what="baseline", remedy=remedy, upgrade=_upgrade)
    if file is None:
        return {}
    cases = {name: case if isinstance(case, list) else [case] for name, case in file.cases.items()}
    for name, ones in cases.items():
        problem = next(filter(None, (_damage(one, file.schema) for one in ones)), None)
        if problem is not None:
            raise BaselineError(f"baseline file {path} is damaged: {name}: {problem}", remedy)
    try:
        return {
            name: tuple(
                Entry(**{**structs.asdict(one), "environment": file.environments[one.environment]}) for one in ones
            )
            for name, ones in cases.items()
        }
    except KeyError as error:
        raise BaselineError(f"baseline file {path} names an unknown environment {error}", remedy) from error


def _upgrade(file: Any) -> None:
    rename_key(file, *CALIBRATION_BEFORE)


def _damage(case: StoredCase, schema: int) -> str | None:
    """What no save leaves behind, though each field by itself may be so; None if there is nothing of the kind."""
    if not case.replicates and case.out_of_memory is None:
        return "it has neither replicates nor out_of_memory"
    if case.anchor is not None and not case.anchor.replicates:
        return "its anchor has no replicates"
    ones = [*case.replicates, *(case.anchor.replicates if case.anchor is not None else ())]
    if any(one.fastest_ns > one.median_ns for one in ones):
        return "a replicate's fastest_ns is above its median_ns"
    if schema < TIMES_ALONE and any(one.memory is None for one in case.replicates):
        return "a replicate has no memory"
    return None


def write_file(path: Path, entries: Mapping[str, Variants]) -> None:
    """Write the file whole.

    Raises:
        BaselineError: it cannot be written.
    """
    write_text(path, _format(entries))


def _format(entries: Mapping[str, Variants]) -> str:
    """JSON with sorted keys, one entry a block and one replicate a line, so that a diff can be read."""
    ordered = {name: sorted(entries[name], key=lambda one: repr(one.environment)) for name in sorted(entries)}
    environments = named([one.environment for ones in ordered.values() for one in ones], _key)
    keys = {environment: key for key, environment in environments.items()}
    blocks = []
    for name, ones in ordered.items():
        first, *others = [_block(one, keys[one.environment]) for one in ones]
        several = ",\n".join(indent(f"    {block}", "  ") for block in (first, *others))
        blocks.append(f"    {as_json(name)}: " + (f"[\n{several}\n    ]" if others else first))
    heads = ",\n".join(f"    {as_json(key)}: {as_json(to_plain(environments[key]))}" for key in sorted(environments))
    cases = ",\n".join(blocks)
    return f'{{\n  "schema": {SCHEMA},\n  "environments": {{\n{heads}\n  }},\n  "cases": {{\n{cases}\n  }}\n}}\n'


def _block(entry: Entry, environment: str) -> str:
    """One entry, as it is indented where the case has no others."""
    fields = {**to_plain(entry), "environment": environment}
    fields["parameters"] = {key: writable(value) for key, value in entry.parameters.items()}
    replicates, anchor = fields.pop("replicates"), fields.pop("anchor", None)
    accepted, profile = fields.pop("accepted", None), fields.pop("profile", None)
    lines = [f"      {as_json(field)}: {as_json(value)}" for field, value in sorted(fields.items())]
    if accepted:
        lines.append(f'      "accepted": {_rows(accepted)}')
    if anchor:
        of_anchor = anchor.pop("replicates")
        facts = "".join(f"{as_json(field)}: {as_json(value)}, " for field, value in sorted(anchor.items()))
        lines.append(f'      "anchor": {{{facts}"replicates": {_rows(of_anchor)}}}')
    if profile:
        lines.append(f'      "profile": {as_json(profile)}')  # one line: its times differ from save to save
    lines.append(f'      "replicates": {_rows(replicates)}')
    return "{\n" + ",\n".join(lines) + "\n    }"


def _key(environment: Environment) -> str:
    return f"{slug(environment)}-python{environment.python}-{environment.threads}t"


def _rows(values: Sequence[object]) -> str:
    """A list within a case, one value a line."""
    rows = ",\n".join(f"        {as_json(value)}" for value in values)
    return f"[\n{rows}\n      ]" if rows else "[]"
