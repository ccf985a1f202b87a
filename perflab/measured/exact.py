"""Stored exact quantities: ``exact-<device>-<torch>/<test module>.json``, once for all machines.

A case's exact quantities may differ where PyTorch has other kernels or more threads. They are therefore stored by
environment, one environment a line. Machines with the same environment share a line, and a save in one environment also
updates the others in each quantity on which the two agreed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import structs

from perflab.base.data import Data, Parameters, changed, to_plain
from perflab.base.errors import BaselineError
from perflab.judging.counts import SLACK, values_of
from perflab.judging.exact import DECIDES, peaks_of
from perflab.results.environment import EXACT, differing, exact_environment, exact_slug
from perflab.results.measured import Baseline, Entry, Exact, ExactQuantities
from perflab.results.records import Environment, ExactEnvironment
from perflab.store.case_files import CaseFiles, module_of, name_of
from perflab.store.json_files import as_json, named, read_checked, writable, write_text

SCHEMA = 3
"""The version of the file format."""
FOLDERS = f"{EXACT}-*"
Variants = tuple[Exact, ...]
"""Exact quantities of one case, one item for each environment."""


class _Case(Data, frozen=True):
    needs: dict[str, ExactQuantities]
    """The quantities by the name of their environment."""
    parameters: Parameters = {}


class _File(Data, frozen=True):
    schema: int
    environments: dict[str, ExactEnvironment]
    cases: dict[str, _Case]


class ExactStore(CaseFiles[Variants]):
    """The exact quantities in the baselines directory. ``CaseFiles`` documents the errors."""

    def paths(self, module: str = "*") -> list[Path]:
        """Return all existing files, or those of one test module."""
        return sorted(self.directory.glob(f"{FOLDERS}/{module}.json"))

    def of(self, case: str, environment: Environment) -> Exact | None:
        """Return a case's stored quantities of the environment closest to this one; None if nothing is stored."""
        here, name = exact_environment(environment), name_of(case)
        own = self.load(self._path(case, here)).get(name, ())
        others = own or [one for path in self.paths(module_of(case)) for one in self.load(path).get(name, ())]
        return closest(others, here)

    def save(self, exacts: Mapping[str, Exact], successor: Callable[[str, Exact | None, Exact], Exact]) -> list[Path]:
        """Add or replace exact quantities of cases (node id -> measurement) in their environments. Return the files.

        ``successor(case, old, new)`` returns the quantities to store if the file holds ``old`` when it is written.
        """

        def put(case: str, stored: Variants | None) -> Variants:
            measured = exacts[case]
            old = next((one for one in stored or () if one.environment == measured.environment), None)
            new = successor(case, old, measured)
            beside = [one for one in stored or () if one.environment != measured.environment]
            return _sorted([new, *(one if old is None else _moved(one, old, new) for one in beside)])

        return self._put({case: self._path(case, exact.environment) for case, exact in exacts.items()}, put)

    def path_for(self, case: str, environment: Environment) -> Path:
        """Return the path of the file for a case's exact quantities in this environment."""
        return self._path(case, exact_environment(environment))

    def put(self, cases: Mapping[str, Variants]) -> list[Path]:
        """Store the exact quantities of cases in every environment. Return the files written."""
        paths = {case: self._path(case, variants[0].environment) for case, variants in cases.items()}
        return self._put(paths, lambda case, _: _sorted(cases[case]))

    def _path(self, case: str, environment: ExactEnvironment) -> Path:
        return self.directory / exact_slug(environment) / f"{module_of(case)}.json"

    def _read(self, path: Path) -> dict[str, Variants]:
        remedy = "restore it (git checkout HEAD), or delete it and run with --perf-update-new"
        file = read_checked(path, _File, SCHEMA, what="baseline", remedy=remedy)
        if file is None:
            return {}
        for name, case in file.cases.items():
            if not case.needs:
                raise BaselineError(f"baseline file {path} is damaged: {name}: its needs are empty", remedy)
        try:
            return {
                name: tuple(
                    Exact(environment=file.environments[key], parameters=case.parameters, **structs.asdict(one))
                    for key, one in case.needs.items()
                )
                for name, case in file.cases.items()
            }
        except KeyError as error:
            raise BaselineError(f"baseline file {path} names an unknown environment {error}", remedy) from error

    def _write(self, path: Path, cases: Mapping[str, Variants]) -> None:
        write_text(path, _format(cases))


def _sorted(variants: Sequence[Exact]) -> Variants:
    return tuple(sorted(variants, key=lambda one: _key(one.environment)))


def _format(cases: Mapping[str, Variants]) -> str:
    """Format JSON with sorted keys and one line for each environment's quantities, so that a diff is readable."""
    environments = named([one.environment for name in sorted(cases) for one in cases[name]], _key)
    keys = {environment: key for key, environment in environments.items()}
    blocks = []
    for name in sorted(cases):
        parameters = {key: writable(value) for key, value in cases[name][0].parameters.items()}
        rows = []
        for one in cases[name]:
            stored = {key: value for key, value in to_plain(one).items() if key not in ("environment", "parameters")}
            rows.append(f"        {as_json(keys[one.environment])}: {as_json(stored)}")
        needs = '      "needs": {\n' + ",\n".join(sorted(rows)) + "\n      }"
        blocks.append(f'    {as_json(name)}: {{\n      "parameters": {as_json(parameters)},\n{needs}\n    }}')
    heads = ",\n".join(f"    {as_json(key)}: {as_json(to_plain(environments[key]))}" for key in sorted(environments))
    body = ",\n".join(blocks)
    return f'{{\n  "schema": {SCHEMA},\n  "environments": {{\n{heads}\n  }},\n  "cases": {{\n{body}\n  }}\n}}\n'


def _key(environment: ExactEnvironment) -> str:
    """Return the name of an environment in a file: ``linux-x86_64-avx512-2t-python3.11``."""
    system = environment.system.lower().replace(" ", "-")
    return f"{system}-{environment.isa.lower()}-{environment.threads}t-python{environment.python}"


def split(entry: Entry) -> Baseline:
    """Split one machine's measurement into what is stored separately: exact quantities and times.

    ``exact`` is None if the replicates have neither exact peaks nor exact counts.
    """
    counts = {
        name: values[0]
        for name, values in values_of(entry.replicates).items()
        if name not in SLACK and len(set(values)) == 1
    }
    counted = {name for replicate in entry.replicates for name in replicate.counts}
    peaks = sorted(set(peaks_of(entry.replicates)))
    exact = Exact(
        environment=exact_environment(entry.environment),
        recorded=entry.recorded,
        peak_bytes=peaks,
        counts=counts,
        varying=sorted(counted - {*counts, *SLACK}),
        parameters=entry.parameters,
        commit=entry.commit,
    )
    inexact = [
        changed(one, memory=None, counts={name: value for name, value in one.counts.items() if name in SLACK})
        for one in entry.replicates
    ]
    times = changed(entry, replicates=inexact)
    return Baseline(exact=exact if peaks or counts else None, times=times)


def closest(variants: Sequence[Exact], here: ExactEnvironment) -> Exact | None:
    """Return the item whose environment differs least from ``here``; None if there are no items."""

    def distance(exact: Exact) -> tuple[int, int]:
        fields = differing(exact.environment, here)
        return len(fields.keys() & set(DECIDES)), len(fields)

    return min(variants, key=distance, default=None)


def _moved(other: Exact, old: Exact, new: Exact) -> Exact:
    """Return the quantities of another environment once ``new`` has replaced ``old`` in its environment.

    Quantities on which the two environments agreed before the change are assumed to agree after it: accepting one more
    operator on a laptop accepts it for the runners with more threads too.
    """
    counts = {
        name: new.counts[name] if value == old.counts.get(name) and name in new.counts else value
        for name, value in other.counts.items()
    }
    with_memory = bool(new.peak_bytes) and other.peak_bytes == old.peak_bytes
    moved = changed(other, counts=counts, peak_bytes=new.peak_bytes if with_memory else other.peak_bytes)
    if moved == other:
        return other
    anchor = new.memory_anchor if with_memory else other.memory_anchor
    return changed(moved, recorded=new.recorded, commit=new.commit, accepted=new.accepted, memory_anchor=anchor)
