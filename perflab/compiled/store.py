"""Baselines of compiled kernels: ``triton-<version>/<registration>.json``, beside the measured ones.

A kernel's file is named after its registration, and its case after the kernel and the architecture. So the command and
the tests of a project share the baselines, which depend on the version of the compiler and on no machine. Each kernel
is a line. Values that many kernels share are stored once, in tables above the kernels: when and why kernels were saved,
and the limits of an architecture.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from perflab.base.data import Amount, Data, to_json, to_plain
from perflab.base.errors import BaselineError
from perflab.base.gpu_names import Arch
from perflab.results.compiled import CompiledKernel, KernelBaseline, KernelResources, case_of
from perflab.store.case_files import Part
from perflab.store.json_files import as_json, named, read_checked, write_text, writing

SCHEMA = 3
"""The version of the file format."""
PREFIX = "triton-"
"""The prefix of the folders' names; folders of measured baselines are named after a device."""
WHAT = "kernel baseline"
REMEDY = "restore it (git checkout HEAD), or delete it and save it again: perflab kernels --update"


class _Save(Data, frozen=True):
    """When, with which Triton and commit, and why kernels were saved."""

    triton: str
    recorded: str
    commit: str | None = None
    reason: str | None = None


class _Target(Data, frozen=True):
    """The assembler of kernels, and the limits of the architecture that they were assembled for."""

    ptxas: str
    shared_limit_bytes: int
    max_warps_per_sm: Amount


class _File(Data, frozen=True):
    """The content of one file. A case holds the fields of ``KernelResources`` that its target does not, and the names
    of its save and its target."""

    schema: int
    registration: str
    saves: dict[str, _Save]
    targets: dict[str, _Target]
    cases: dict[str, dict[str, object]]


class KernelStore:
    """The baselines of compiled kernels in the baselines directory. Each file is read once, when first needed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[Path, dict[str, KernelBaseline]] = {}

    def path_for(self, registration: str, triton: str) -> Path:
        """Return the path of the file for a registration's baselines, whether the file exists or not."""
        name = f"{quote(registration.replace(':', '.'), safe='')}.json"
        return self.directory / f"{PREFIX}{quote(triton, safe='+')}" / name

    def baseline(self, kernel: CompiledKernel) -> KernelBaseline | None:
        """Return the kernel's baseline for its Triton version, else the latest of another version; None if it has none.

        Raises:
            BaselineError: a file is damaged or foreign.
        """
        own, case = self.path_for(kernel.registration, kernel.triton), case_of(kernel.name, kernel.arch)
        if case in self.load(own):
            return self.load(own)[case]
        others = [self.load(path).get(case) for path in sorted(self.directory.glob(f"{PREFIX}*/{own.name}"))]
        return max((one for one in others if one is not None), key=lambda one: one.recorded, default=None)

    def load(self, path: Path) -> Mapping[str, KernelBaseline]:
        """Return the baselines of every case in a file; empty if there is no such file.

        Raises:
            BaselineError: the file cannot be read, is not JSON, or is not a file of kernel baselines.
        """
        if path not in self._files:
            self._files[path] = _read(path)[1]
        return self._files[path]

    def check(self, registration: str) -> None:
        """Read all files of a registration, so that errors in them appear before compiling starts.

        Raises:
            BaselineError: a file is damaged or foreign.
        """
        for path in sorted(self.directory.glob(f"{PREFIX}*/{self.path_for(registration, '').name}")):
            self.load(path)

    def stale(self, registration: str, triton: str, known: Mapping[Arch, Collection[str]]) -> list[str]:
        """Return stored cases that are no longer registered, for the architectures in ``known``.

        ``known`` holds the names of the registered kernels by architecture.
        """
        cases = {case_of(name, arch) for arch, names in known.items() for name in names}
        ends = tuple(case_of("", arch) for arch in known)
        stored = self.load(self.path_for(registration, triton))
        return sorted(case for case in stored if case.endswith(ends) and case not in cases)

    def save(
        self, registration: str, triton: str, baselines: Mapping[str, KernelBaseline], stale: Collection[str] = ()
    ) -> Path:
        """Add or replace cases of a registration, and remove the stale ones; all others stay. Return the file's path.

        A case with unchanged resources stays as it was saved, date and commit included, unless a reason is given.

        Raises:
            BaselineError: the existing file cannot be read, or the file cannot be written.
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
    """Return a file's registration and its cases; both are empty if there is no such file."""
    file = read_checked(path, _File, SCHEMA, what=WHAT, remedy=REMEDY)
    if file is None:
        return "", {}
    return file.registration, {case: _baseline(file, case, path) for case in file.cases}


def _baseline(file: _File, case: str, path: Path) -> KernelBaseline:
    own = file.cases[case]
    save, target = file.saves.get(str(own.get("save"))), file.targets.get(str(own.get("target")))
    try:
        if save is None or target is None:
            raise msgspec.ValidationError("its save or its target is in no table")
        if "instructions" not in own:  # optional in ``KernelResources``, because results files omit empty fields
            raise msgspec.ValidationError("Object missing required field `instructions`")
        numbers = {name: value for name, value in own.items() if name not in ("save", "target")}
        resources = msgspec.convert({**numbers, **to_plain(target)}, KernelResources)
    except msgspec.ValidationError as error:
        raise BaselineError(f"{path} is not a perflab {WHAT} file: {case}: {error}", REMEDY) from error
    return KernelBaseline(resources=resources, **to_plain(save))


def _format(registration: str, cases: Mapping[str, KernelBaseline]) -> str:
    """Format a file as JSON: the schema first, one line a kernel, sorted, so that a diff shows only changed kernels."""
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
    """Join files: for each kernel, architecture and Triton version, keep the baseline that was recorded last.

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
