"""Stored numbers of measured cases: exact quantities for all machines, times by machine, and a machine's own history.

A case's exact quantities may differ where PyTorch has other kernels or more threads. They are therefore stored by
environment, one environment a line, in ``exact-<device>-<torch>/<test module>.json``. Machines with the same
environment share a line, and a save in one environment also updates the others in each quantity on which the two
agreed.

Committed times have precedence. A machine without committed times keeps the times of its runs in a separate folder,
which is not committed, so that a second run has something to compare with. A profile is stored with all of its rows, as
one line of text: as JSON some hundred rows take 30 to 60 kB, and compressed, since they are much alike, a tenth. Here
are also the files in a directory, for pruning and joining, and the judgement on a run whose baseline is another run.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from perflab.base.data import Data, Parameters, changed, to_json, to_plain
from perflab.base.errors import BaselineError
from perflab.judging.counts import SLACK, values_of
from perflab.judging.exact import DECIDES, peaks_of
from perflab.judging.judge import judge
from perflab.judging.kept import Reading, Step, next_step, unexplained
from perflab.profiles.parts import launches_and_waits
from perflab.results.environment import EXACT, differing, exact_environment, exact_slug, slug, whole_slug
from perflab.results.measured import Baseline, Entry, Exact, ExactQuantities
from perflab.results.measurement import Record, Replicate
from perflab.results.profile import Profile
from perflab.results.records import Environment, ExactEnvironment, Judgement, Policy, Verdict
from perflab.results.result import Result
from perflab.store.case_files import CaseFiles, Part, case_at, module_of, name_of
from perflab.store.json_files import as_json, is_exact_file, named, read_checked, writable, write_text
from perflab.store.stale import Stored, StoredFile
from perflab.store.times import BaselineStore
from perflab.store.times import Variants as Times

SCHEMA = 3
"""The version of the file format."""
FOLDERS = f"{EXACT}-*"
Exacts = tuple[Exact, ...]
"""Exact quantities of one case, one item for each environment."""


class _Case(Data, frozen=True):
    needs: dict[str, ExactQuantities]
    """The quantities by the name of their environment."""
    parameters: Parameters = {}


class _File(Data, frozen=True):
    schema: int
    environments: dict[str, ExactEnvironment]
    cases: dict[str, _Case]


class ExactStore(CaseFiles[Exacts]):
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

        def put(case: str, stored: Exacts | None) -> Exacts:
            measured = exacts[case]
            old = next((one for one in stored or () if one.environment == measured.environment), None)
            new = successor(case, old, measured)
            beside = [one for one in stored or () if one.environment != measured.environment]
            return _sorted([new, *(one if old is None else _moved(one, old, new) for one in beside)])

        return self._put({case: self._path(case, exact.environment) for case, exact in exacts.items()}, put)

    def path_for(self, case: str, environment: Environment) -> Path:
        """Return the path of the file for a case's exact quantities in this environment."""
        return self._path(case, exact_environment(environment))

    def put(self, cases: Mapping[str, Exacts]) -> list[Path]:
        """Store the exact quantities of cases in every environment. Return the files written."""
        paths = {case: self._path(case, variants[0].environment) for case, variants in cases.items()}
        return self._put(paths, lambda case, _: _sorted(cases[case]))

    def _path(self, case: str, environment: ExactEnvironment) -> Path:
        return self.directory / exact_slug(environment) / f"{module_of(case)}.json"

    def _read(self, path: Path) -> dict[str, Exacts]:
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

    def _write(self, path: Path, cases: Mapping[str, Exacts]) -> None:
        write_text(path, _format(cases))


def _sorted(variants: Sequence[Exact]) -> Exacts:
    return tuple(sorted(variants, key=lambda one: _key(one.environment)))


def _format(cases: Mapping[str, Exacts]) -> str:
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


ExactSuccessor = Callable[[str, Exact | None, Exact], Exact]
TimesSuccessor = Callable[[str, Entry | None, Entry], Entry]
One = TypeVar("One", Entry, Exact)


class Baselines:
    """Every place in which numbers of measured cases are stored. ``CaseFiles`` documents the errors.

    Args:
        directory: baselines that are committed.
        own: this machine's own history.
    """

    def __init__(self, directory: Path, own: Path) -> None:
        self.exact = ExactStore(directory)
        self.times = BaselineStore(directory)
        self._own = BaselineStore(own, whole_slug)

    def of(self, case: str, environment: Environment) -> Baseline:
        """Return the numbers that a case is compared with.

        If none are comparable, return the closest ones, so that the judge can say what differs.
        """
        committed = self.times.entries(case, environment)
        known = [*committed, *self._own.entries(case, environment)]
        times = min(known, key=lambda entry: len(differing(entry.environment, environment)), default=None)
        exact = self.exact.of(case, environment)
        return Baseline(exact=exact, times=times, times_are_own=times is not None and times not in committed)

    def has_exact(self, case: str, environment: Environment) -> bool:
        """Whether exact quantities of the case are stored for exactly this environment."""
        exact = self.exact.of(case, environment)
        return exact is not None and exact.environment == exact_environment(environment)

    def has_times(self, case: str, environment: Environment) -> bool:
        """Whether times of the case are committed for exactly this environment."""
        times = self.times.entries(case, environment)
        return bool(times) and not differing(times[0].environment, environment)

    def save(
        self,
        exacts: Mapping[str, Entry],
        times: Mapping[str, Entry],
        exact_successor: ExactSuccessor,
        times_successor: TimesSuccessor,
    ) -> list[Path]:
        """Store the exact quantities of ``exacts`` and the times of ``times``. Return the files written.

        Args:
            exacts: node id -> a measurement with all its replicates.
            times: node id -> a measurement with all its replicates; mostly the cases of ``exacts``.
            exact_successor: ``(case, old, new)`` returns the exact quantities to store if the file holds ``old``.
            times_successor: ``(case, old, new)`` returns the times to store if the file holds ``old``.
        """
        found = {case: exact for case, entry in exacts.items() if (exact := split(entry).exact) is not None}
        own = {case: one for case, entry in times.items() if (one := split(entry).times) is not None}
        paths = self.times.save(own, times_successor) if own else []
        self._forget(self._own, own)
        differing = {
            case: entry
            for case, entry in exacts.items()
            if case not in found and any(one.memory is not None and one.memory.least for one in entry.replicates)
        }
        self._forget(self.exact, differing)
        return [*paths, *(self.exact.save(found, exact_successor) if found else [])]

    def _forget(self, store: BaselineStore | ExactStore, cases: Mapping[str, Entry]) -> None:
        """Remove the cases from a store's files of their environments."""
        names: dict[Path, list[str]] = {}
        for case, entry in cases.items():
            path = store.path_for(case, entry.environment)
            if path.exists():
                names.setdefault(path, []).append(name_of(case))
        if names:
            store.remove(names)

    def keep(self, runs: Mapping[str, Reading]) -> dict[str, Step]:
        """Keep times of cases without committed times in this machine's own history. Return the step of each history.

        Args:
            runs: node id -> a run's measurement of a case without committed times.
        """
        steps: dict[str, Step] = {}

        def successor(case: str, old: Entry | None, new: Entry) -> Entry:
            steps[case] = next_step(old, new, runs[case].policy)
            return steps[case].entry

        entries = {case: one for case, reading in runs.items() if (one := split(reading.entry).times) is not None}
        joining = {case: one for case, one in entries.items() if not runs[case].is_worse}
        if joining:
            self._own.save(joining, successor)
        for case, new in entries.items():
            for old in self._own.entries(case, new.environment)[:1] if runs[case].is_worse else ():
                steps[case] = Step(old, left_out=unexplained(old, new))
        return steps


CUT_SHORT = "--perf-check=exact cut the measuring of its time short"


def judge_runs(before: Result, now: Result, policy: Policy) -> Judgement | None:
    """Return the judgement of ``now`` against ``before``; None if one has no record, or ``before`` no times.

    A run that measured in one process does not know its noise. It is believed if all other evidence agrees, like a
    machine's own history of few runs. A time that ``--perf-check=exact`` cut short is not compared.
    """
    base, head = before.record, now.record
    if base is None or head is None or base.summary is None:
        return None
    replicates, now_is_cut_short = _judged(base, base.summary), head.times_are_cut_short
    if head.summary is not None:
        own = _judged(head, head.summary)
        middle = sorted(own, key=lambda one: one.median_ns)[len(own) // 2]
        fresh = own if len(own) > 1 and len(replicates) > 1 else []
        head = changed(head, summary=middle, fresh=fresh, paired=None, paired_to_anchor=None)
    entry = Entry(environment=base.environment, recorded="", replicates=replicates)
    parts = split(entry)
    is_cut_short = base.times_are_cut_short or now_is_cut_short
    times = None if is_cut_short else parts.times
    judgement = judge(head, Baseline(exact=parts.exact, times=times, times_are_own=True), policy)
    if is_cut_short and judgement.verdict is Verdict.NEW:  # it has nothing but times
        return changed(judgement, verdict=Verdict.INCOMPARABLE, reasons=[CUT_SHORT])
    return changed(judgement, no_times=CUT_SHORT) if is_cut_short else judgement


def _judged(record: Record, summary: Replicate) -> list[Replicate]:
    """Return the replicates on which the run's own verdict rests."""
    return record.fresh or [summary]


def stored(directory: Path, environments: Sequence[Environment]) -> Iterator[StoredFile]:
    """Yield the files of these environments: times first, then exact quantities."""
    times, exact, own = BaselineStore(directory), ExactStore(directory), list(dict.fromkeys(environments))
    for here in own:
        yield from _files(times, slug(here), partial(_are_all_of, here))
    for there in map(exact_environment, own):
        yield from _files(exact, exact_slug(there), partial(_is_any_comparable, there))


def _are_all_of(here: Environment, ones: Times) -> bool:
    return all(one.environment == here for one in ones)


def _is_any_comparable(here: ExactEnvironment, ones: Exacts) -> bool:
    return any(not differing(one.environment, here).keys() & set(DECIDES) for one in ones)


def _files(store: CaseFiles[tuple[One, ...]], folder: str, is_ours: Callable[[Any], bool]) -> Iterator[StoredFile]:
    """Yield a folder's files. ``is_ours`` says of a case's variants whether this session would have met them."""

    def entries(path: Path) -> dict[str, Stored]:
        found = store.load(path).items()
        return {name: Stored(is_ours(ones), ones[0].recorded, ones[0].commit) for name, ones in found}

    for path in sorted((store.directory / folder).glob("*.json")):
        yield StoredFile(path, store, partial(entries, path))


def join(paths: Sequence[Path]) -> Part:
    """Join files: keep the latest record of each case and environment.

    Raises:
        BaselineError: a file is damaged or foreign.
    """
    times: dict[str, dict[str, Times]] = {}
    exact: dict[str, dict[str, Exacts]] = {}
    for path in paths:
        directory, folder = path.parent.parent, path.parent.name
        if is_exact_file(path):
            _join(ExactStore(directory), path, exact.setdefault(folder, {}))
        else:
            _join(BaselineStore(directory), path, times.setdefault(folder, {}))

    def write(output: Path) -> set[Path]:
        files = {file for cases in times.values() for file in BaselineStore(output).put(cases)}
        return files | {file for cases in exact.values() for file in ExactStore(output).put(cases)}

    # A measured case with both exact quantities and times counts as one baseline.
    return Part(max(sum(map(len, exact.values())), sum(map(len, times.values()))), write)


def _join(store: CaseFiles[tuple[One, ...]], path: Path, joined: dict[str, tuple[One, ...]]) -> None:
    """Add a file's cases to ``joined``, keeping the latest record of each environment."""
    for name, variants in store.load(path).items():
        case = case_at(path, name)
        latest = {one.environment: one for one in joined.get(case, ())}
        for one in variants:
            if one.environment not in latest or one.recorded >= latest[one.environment].recorded:
                latest[one.environment] = one
        joined[case] = tuple(latest.values())


_DIGITS = 3
"""Significant digits of stored times: further digits differ from save to save and cost half of the bytes."""
_MOST_BYTES = 1 << 24
"""The greatest size of unpacked JSON in bytes: a damaged or hostile file must not fill the memory."""


def packed(profile: Profile) -> str:
    """Return the profile as compressed JSON in base64.

    FLOPs and those calls of CUDA that are not counted by metrics are left out; times are shortened to a few digits.
    """
    rows = [changed(row, time_ns=_short(row.time_ns), spread_ns=_short(row.spread_ns), flops=0) for row in profile.rows]
    calls = [changed(one, time_ns=_short(one.time_ns)) for one in launches_and_waits(profile.cuda_calls)]
    plain = to_json(changed(profile, rows=rows, cuda_calls=calls))
    return base64.b64encode(zlib.compress(plain, 9)).decode("ascii")


def unpacked(text: str) -> Profile | None:
    """Return the profile that ``packed`` made a text of; None for any other text."""
    try:
        plain = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
        return msgspec.json.decode(plain, type=Profile)
    except (binascii.Error, zlib.error, msgspec.MsgspecError):
        return None


def _short(time_ns: float) -> float:
    return float(f"{time_ns:.{_DIGITS}g}")
