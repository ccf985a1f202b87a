"""Stored times: ``<environment>/<test module>.json``, checked field by field on reading, readable as a diff."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Annotated

from msgspec import Meta, structs

from perflab.base.data import Data, to_plain
from perflab.base.errors import BaselineError
from perflab.results.environment import differing, slug
from perflab.results.measured import Entry, Timed
from perflab.results.records import Environment
from perflab.store.case_files import CaseFiles, module_of, name_of
from perflab.store.json_files import PREDICTED, as_json, is_exact_file, named, read_checked, writable, write_text

SCHEMA = 4
"""The version of the file format."""
Variants = tuple[Entry, ...]
"""A case's times, one item for each environment: machines of one folder may differ in versions and thread counts."""


class _StoredCase(Timed, frozen=True, kw_only=True):
    """An entry in the format of a file: ``environment`` is the name of one of the file's environments."""

    environment: str


class _File(Data, frozen=True):
    """One file. Each environment is stored once, and cases refer to it by name, so that a case is a short block."""

    schema: int
    environments: dict[str, Environment]
    cases: dict[str, _StoredCase | Annotated[list[_StoredCase], Meta(min_length=1)]]
    """Cases by name: a list if a case has times of several environments."""


class BaselineStore(CaseFiles[Variants]):
    """The times in a directory of baselines. ``CaseFiles`` documents the errors.

    Args:
        directory: the directory of baselines.
        folder_of: returns the name of the folder of an environment's times.
    """

    def __init__(self, directory: Path, folder_of: Callable[[Environment], str] = slug) -> None:
        super().__init__(directory)
        self._folder_of = folder_of

    def path_for(self, case: str, environment: Environment) -> Path:
        """Return the path of the file for the case's times, whether it exists or not."""
        return self.directory / self._folder_of(environment) / f"{module_of(case)}.json"

    def entries(self, case: str, environment: Environment) -> list[Entry]:
        """Return all times of a case, sorted by how little their environment differs from this one."""
        name, own = name_of(case), self.path_for(case, environment)
        paths = [own, *(path for path in sorted(self.directory.glob(f"*/{module_of(case)}.json")) if path != own)]
        found = [
            entry
            for path in paths
            if not (path.parent.name.startswith(PREDICTED) or is_exact_file(path))
            for entry in self.load(path).get(name, ())
        ]
        return sorted(found, key=lambda entry: len(differing(entry.environment, environment)))

    def save(
        self, entries: Mapping[str, Entry], successor: Callable[[str, Entry | None, Entry], Entry] | None = None
    ) -> list[Path]:
        """Add or replace the entries of cases (node id -> entry) in their environments. Return the files written.

        All other entries stay. ``successor(case, old, new)``, if given, returns the entry to store instead of ``new``
        if the file holds ``old`` when it is written. ``old`` is the entry of the same environment, or else of the
        closest one, which stays in the file.
        """

        def put(case: str, stored: Variants | None) -> Variants:
            new, known = entries[case], stored or ()
            beside = [one for one in known if one.environment != new.environment]
            if successor is not None:
                old = min(known, key=lambda one: len(differing(one.environment, new.environment)), default=None)
                new = successor(case, old, new)
            return (*beside, new)

        return self._put({case: self.path_for(case, entry.environment) for case, entry in entries.items()}, put)

    def put(self, cases: Mapping[str, Variants]) -> list[Path]:
        """Store all times of cases, of environments that share a folder. Return the files written."""
        paths = {case: self.path_for(case, ones[0].environment) for case, ones in cases.items()}
        return self._put(paths, lambda case, _: cases[case])

    def _read(self, path: Path) -> dict[str, Variants]:
        remedy = "restore it (git checkout HEAD), or delete it and run with --perf-update-new"
        file = read_checked(path, _File, SCHEMA, what="baseline", remedy=remedy)
        if file is None:
            return {}
        cases = {name: case if isinstance(case, list) else [case] for name, case in file.cases.items()}
        for name, ones in cases.items():
            problem = next(filter(None, map(_damage, ones)), None)
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

    def _write(self, path: Path, cases: Mapping[str, Variants]) -> None:
        write_text(path, _format(cases))


def _damage(case: _StoredCase) -> str | None:
    """Return a combination of valid fields that no save produces, as a sentence; None if there is none."""
    if not case.replicates and case.out_of_memory is None:
        return "it has neither replicates nor out_of_memory"
    if case.anchor is not None and not case.anchor.replicates:
        return "its anchor has no replicates"
    ones = [*case.replicates, *(case.anchor.replicates if case.anchor is not None else ())]
    if any(one.fastest_ns > one.median_ns for one in ones):
        return "a replicate's fastest_ns is above its median_ns"
    return None


def _format(entries: Mapping[str, Variants]) -> str:
    """Format JSON with sorted keys, one entry a block and one replicate a line, so that a diff is readable."""
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
    """Format one entry, indented for a case that has no other entries."""
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
    """Format a list within a case, one value a line."""
    rows = ",\n".join(f"        {as_json(value)}" for value in values)
    return f"[\n{rows}\n      ]" if rows else "[]"
