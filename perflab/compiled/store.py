"""Baselines of compiled kernels: ``triton-<version>/<registration>.json``, beside the measured ones.

A kernel's file is named for where it is registered, and its case for the kernel and the architecture. So the
command and the tests of a project share them, and no machine matters: only versions of the compiler do. Each kernel is
a line. What many have in common stands once, in a table above them: when and why they were saved, and what an
architecture gives them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from perflab.compiled.records import CompiledKernel, KernelBaseline, KernelResources, case_of
from perflab.data import Amount, Data, to_json, to_plain
from perflab.errors import BaselineError
from perflab.store.join import Part
from perflab.store.json_files import as_json, named, read_checked, write_text, writing

SCHEMA = 3
"""1: each kernel said for itself when it was saved, and what its architecture gives. 2 and before: a kernel without
instructions of interest had none, as one has that lost them. Both are still read."""
PREFIX = "triton-"
"""How the folders begin; environments of measured baselines are named for a device."""
WHAT = "kernel baseline"
REMEDY = "restore it (git checkout), or delete it and save it again: perflab kernels --update"


class _Save(Data, frozen=True):
    """When, with what and why kernels were saved."""

    triton: str
    recorded: str
    commit: str | None = None
    reason: str | None = None


class _Target(Data, frozen=True):
    """What kernels were assembled with, and what their architecture gives them."""

    ptxas: str
    shared_limit_bytes: int
    max_warps_per_sm: Amount


class _File(Data, frozen=True):
    """One file. A case is what ``KernelResources`` has beyond its target, and the names of its save and target."""

    schema: int
    registration: str
    saves: dict[str, _Save]
    targets: dict[str, _Target]
    cases: dict[str, dict[str, object]]


class KernelStore:
    """The baselines directory, as far as it holds compiled kernels. Files are read once and when first needed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[Path, dict[str, KernelBaseline]] = {}

    def path_for(self, registration: str, triton: str) -> Path:
        """The file in which a registration's baselines live, or would."""
        name = f"{quote(registration.replace(':', '.'), safe='')}.json"
        return self.directory / f"{PREFIX}{quote(triton, safe='+')}" / name

    def baseline(self, kernel: CompiledKernel) -> KernelBaseline | None:
        """The kernel's baseline; where this Triton has none, the latest of another one; or None.

        Raises:
            BaselineError: a file is damaged or foreign.
        """
        own, case = self.path_for(kernel.registration, kernel.triton), case_of(kernel.name, kernel.arch)
        if case in self.load(own):
            return self.load(own)[case]
        others = [self.load(path).get(case) for path in sorted(self.directory.glob(f"{PREFIX}*/{own.name}"))]
        return max((one for one in others if one is not None), key=lambda one: one.recorded, default=None)

    def load(self, path: Path) -> Mapping[str, KernelBaseline]:
        """All cases of one file; none if there is no such file.

        Raises:
            BaselineError: the file cannot be read, is no JSON, or is not one of ours.
        """
        if path not in self._files:
            self._files[path] = _read(path)[1]
        return self._files[path]

    def check(self, registration: str) -> None:
        """Read what there is of a registration, before anybody waits for a compiler.

        Raises:
            BaselineError: a file is damaged or foreign.
        """
        for path in sorted(self.directory.glob(f"{PREFIX}*/{self.path_for(registration, '').name}")):
            self.load(path)

    def stale(self, registration: str, triton: str, known: Mapping[int, Collection[str]]) -> list[str]:
        """Stored cases that are registered no more, of the architectures that ``known`` has the names of."""
        cases = {case_of(name, arch) for arch, names in known.items() for name in names}
        ends = tuple(case_of("", arch) for arch in known)
        stored = self.load(self.path_for(registration, triton))
        return sorted(case for case in stored if case.endswith(ends) and case not in cases)

    def save(
        self, registration: str, triton: str, baselines: Mapping[str, KernelBaseline], stale: Collection[str] = ()
    ) -> Path:
        """Add or replace cases of a registration, and remove what is stale; all others stay.

        One that takes what it took stays as it was saved, date and commit included, unless a reason is given.

        Raises:
            BaselineError: the file cannot be read first, or cannot be written.
        """
        path = self.path_for(registration, triton)
        with writing(self.directory):
            self._files.pop(path, None)
            stored = self.load(path)
            kept = {case: one for case, one in stored.items() if case not in stale}
            new = {
                case: one
                for case, one in baselines.items()
                if case not in stored or one.reason or stored[case].resources != one.resources
            }
            write_text(path, _format(registration, {**kept, **new}))
            self._files.pop(path)
        return path


def _read(path: Path) -> tuple[str, dict[str, KernelBaseline]]:
    """A file's registration and its cases; nothing if there is no such file."""
    file = read_checked(path, _File, SCHEMA, what=WHAT, remedy=REMEDY, upgrade=_upgrade)
    if file is None:
        return "", {}
    return file.registration, {case: _baseline(file, case, path) for case in file.cases}


def _upgrade(file: Any) -> None:
    """What older schemas had, as the newest has it: a save and a target for each kernel, and its instructions."""
    cases = file.get("cases")
    if file["schema"] == 1:
        file["saves"], file["targets"] = {}, {}
    for case, one in cases.items() if isinstance(cases, dict) else ():
        resources = one.pop("resources", None) if isinstance(one, dict) and file["schema"] == 1 else None
        if isinstance(resources, dict):
            file["saves"][case] = one
            file["targets"][case] = {name: resources.pop(name, None) for name in _Target.__struct_fields__}
            cases[case] = {**resources, "save": case, "target": case}
        if isinstance(cases[case], dict):
            cases[case].setdefault("instructions", {})
    file["schema"] = SCHEMA


def _baseline(file: _File, case: str, path: Path) -> KernelBaseline:
    own = file.cases[case]
    save, target = file.saves.get(str(own.get("save"))), file.targets.get(str(own.get("target")))
    try:
        if save is None or target is None:
            raise msgspec.ValidationError("its save or its target is in no table")
        if "instructions" not in own:  # ``KernelResources`` may do without: results files leave out what is empty
            raise msgspec.ValidationError("Object missing required field `instructions`")
        numbers = {name: value for name, value in own.items() if name not in ("save", "target")}
        resources = msgspec.convert({**numbers, **to_plain(target)}, KernelResources)
    except msgspec.ValidationError as error:
        raise BaselineError(f"{path} is not a perflab {WHAT} file: {case}: {error}", REMEDY) from error
    return KernelBaseline(resources=resources, **to_plain(save))


def _format(registration: str, cases: Mapping[str, KernelBaseline]) -> str:
    """JSON, schema first, a kernel a line, sorted: a diff shows the kernels that changed, and no others."""
    save_of = {case: _Save(**_fields(one, _Save)) for case, one in cases.items()}
    arch_of = {case: case.rpartition("[")[2].removesuffix("]") for case in cases}
    target_of = {case: (arch_of[case], _Target(**_fields(one.resources, _Target))) for case, one in cases.items()}
    saves = named(sorted(save_of.values(), key=to_json), lambda save: save.recorded)
    targets = named(sorted(target_of.values(), key=lambda target: to_json(target[1])), lambda target: target[0])
    name_of = {one: name for name, one in [*saves.items(), *targets.items()]}
    lines = {
        case: {
            **{name: value for name, value in to_plain(one.resources).items() if name not in _Target.__struct_fields__},
            "instructions": one.resources.instructions,
            "save": name_of[save_of[case]],
            "target": name_of[target_of[case]],
        }
        for case, one in cases.items()
    }
    limits = {name: target for name, (_, target) in targets.items()}
    tables = [_table(name, table) for name, table in (("saves", saves), ("targets", limits), ("cases", lines))]
    head = f'  "schema": {SCHEMA},\n  "registration": {as_json(registration)}'
    return "{\n" + ",\n".join([head, *tables]) + "\n}\n"


def _fields(one: Data, kind: type[Data]) -> dict[str, Any]:
    return {name: getattr(one, name) for name in kind.__struct_fields__}


def _table(name: str, table: Mapping[str, Any]) -> str:
    lines = [f"    {as_json(key)}: {as_json(msgspec.to_builtins(table[key]))}" for key in sorted(table)]
    return f'  "{name}": {{\n' + ",\n".join(lines) + "\n  }" if lines else f'  "{name}": {{}}'


def join(paths: Sequence[Path]) -> Part:
    """Of each kernel, architecture and Triton what was recorded last.

    Raises:
        BaselineError: a file is damaged or foreign.
    """
    joined: dict[tuple[str, str], dict[str, KernelBaseline]] = {}
    for path in paths:
        registration, found = _read(path)
        for case, baseline in found.items():
            cases = joined.setdefault((registration, baseline.triton), {})
            if case not in cases or baseline.recorded >= cases[case].recorded:
                cases[case] = baseline

    def write(output: Path) -> set[Path]:
        return {KernelStore(output).save(*key, cases) for key, cases in joined.items()}

    return Part(sum(map(len, joined.values())), write)
