"""One baseline file: JSON that is checked field by field on reading, fit for review as a diff, never half written.

A file that cannot be understood is an error that names the file, the place and the remedy; it is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from perflab.environment import slug
from perflab.errors import BaselineError
from perflab.gate.files import as_json, read_checked, writable, write_whole
from perflab.records import (
    Accepted,
    Anchor,
    Data,
    Entry,
    Environment,
    MemoryAnchor,
    OutOfMemory,
    Parameters,
    Replicate,
    to_plain,
)

SCHEMA = 1


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
    commit: str | None = None


class BaselineFile(Data, frozen=True):
    """One file. Environments stand once, and cases name theirs, so that a case reads as one short block."""

    schema: int
    environments: dict[str, Environment]
    cases: dict[str, StoredCase]


def read_file(path: Path) -> dict[str, Entry]:
    """All entries of a file, by the cases' names; none if there is no such file.

    Raises:
        BaselineError: the file cannot be read, is no JSON, or is not one of ours.
    """
    remedy = "restore it (git checkout), or delete it and run with --perf-update-new"
    file = read_checked(path, BaselineFile, SCHEMA, what="baseline", remedy=remedy)
    if file is None:
        return {}
    try:
        return {
            name: Entry(
                environment=file.environments[case.environment],
                recorded=case.recorded,
                replicates=case.replicates,
                parameters=case.parameters,
                out_of_memory=case.out_of_memory,
                anchor=case.anchor,
                memory_anchor=case.memory_anchor,
                accepted=case.accepted,
                commit=case.commit,
            )
            for name, case in file.cases.items()
        }
    except KeyError as error:
        raise BaselineError(f"baseline file {path} names an unknown environment {error}", remedy) from error


def write_file(path: Path, entries: Mapping[str, Entry]) -> None:
    """Write the file whole.

    Raises:
        BaselineError: it cannot be written.
    """
    write_whole(path, _format(entries))


def _format(entries: Mapping[str, Entry]) -> str:
    """JSON with sorted keys, one case a block and one replicate a line, so that a diff can be read."""
    names: dict[str, Environment] = {}
    blocks = []
    for name in sorted(entries):
        entry = entries[name]
        details = entry.environment
        key = f"{slug(details)}-python{details.python}-{details.threads}t"
        while names.get(key, details) != details:
            key += "+"  # the same by name, and other in some further detail
        names[key] = entry.environment
        fields = {**to_plain(entry), "environment": key}
        fields["parameters"] = {key: writable(value) for key, value in entry.parameters.items()}
        replicates, anchor = fields.pop("replicates"), fields.pop("anchor", None)
        accepted = fields.pop("accepted", None)
        lines = [f"      {as_json(field)}: {as_json(value)}" for field, value in sorted(fields.items())]
        if accepted:
            lines.append(f'      "accepted": {_rows(accepted)}')
        if anchor:
            of_anchor = anchor.pop("replicates")
            facts = "".join(f"{as_json(field)}: {as_json(value)}, " for field, value in sorted(anchor.items()))
            lines.append(f'      "anchor": {{{facts}"replicates": {_rows(of_anchor)}}}')
        lines.append(f'      "replicates": {_rows(replicates)}')
        blocks.append(f"    {as_json(name)}: {{\n" + ",\n".join(lines) + "\n    }")
    environments = ",\n".join(f"    {as_json(key)}: {as_json(to_plain(names[key]))}" for key in sorted(names))
    cases = ",\n".join(blocks)
    return f'{{\n  "schema": {SCHEMA},\n  "environments": {{\n{environments}\n  }},\n  "cases": {{\n{cases}\n  }}\n}}\n'


def _rows(values: Sequence[object]) -> str:
    """A list within a case, one value a line."""
    rows = ",\n".join(f"        {as_json(value)}" for value in values)
    return f"[\n{rows}\n      ]" if rows else "[]"
