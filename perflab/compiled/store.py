"""Baselines of compiled kernels: ``triton-<version>/<registration>.json``, beside the measured ones.

A kernel's file is named for where it is registered, and its case for the kernel and the architecture. So the
command and the tests of a project share them, and no machine matters: only versions of the compiler do.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from perflab.compiled.records import CompiledKernel, KernelBaseline
from perflab.data import Data, to_plain
from perflab.errors import BaselineError
from perflab.store.join import Part
from perflab.store.json_files import read_checked, write_text, writing

SCHEMA = 1
PREFIX = "triton-"
"""How the folders begin; environments of measured baselines are named for a device."""


class KernelFile(Data, frozen=True):
    """One file."""

    schema: int
    registration: str
    cases: dict[str, KernelBaseline]


class KernelStore:
    """The baselines directory, as far as it holds compiled kernels. Files are read once and when first needed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[Path, dict[str, KernelBaseline]] = {}

    def path_for(self, registration: str, triton: str) -> Path:
        """The file in which a registration's baselines live, or would."""
        return (
            self.directory
            / f"{PREFIX}{quote(triton, safe='+')}"
            / f"{quote(registration.replace(':', '.'), safe='')}.json"
        )

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
            remedy = "restore it (git checkout), or delete it and save anew: perflab kernels --update"
            file = read_checked(path, KernelFile, SCHEMA, what="kernel baseline", remedy=remedy)
            self._files[path] = file.cases if file is not None else {}
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


def case_of(name: str, arch: int) -> str:
    """What a kernel is called for an architecture: ``rms-norm-bf16[sm_90]``."""
    return f"{name}[sm_{arch}]"


def registration_of(path: Path) -> str:
    """The registration that a file's cases belong to.

    Raises:
        BaselineError: the file is damaged or foreign, or gone.
    """
    remedy = "restore it (git checkout), or delete it and save anew: perflab kernels --update"
    file = read_checked(path, KernelFile, SCHEMA, what="kernel baseline", remedy=remedy)
    if file is None:
        raise BaselineError(f"there is no file {path}", remedy)
    return file.registration


def _format(registration: str, cases: Mapping[str, KernelBaseline]) -> str:
    """JSON, schema first, with sorted keys and a number a line: what changed in a kernel is what a diff shows."""
    head = {"schema": SCHEMA, "registration": registration}
    body = {"cases": {case: to_plain(one) for case, one in cases.items()}}
    first = json.dumps(head, indent=2, ensure_ascii=False).removesuffix("\n}")
    rest = json.dumps(body, indent=2, sort_keys=True, ensure_ascii=False).removeprefix("{\n")
    return f"{first},\n{rest}\n"


def join(paths: Sequence[Path]) -> Part:
    """Of each kernel, architecture and Triton what was recorded last.

    Raises:
        BaselineError: a file is damaged or foreign.
    """
    joined: dict[tuple[str, str], dict[str, KernelBaseline]] = {}
    for path in paths:
        for case, baseline in KernelStore(path.parent.parent).load(path).items():
            cases = joined.setdefault((registration_of(path), baseline.triton), {})
            if case not in cases or baseline.recorded >= cases[case].recorded:
                cases[case] = baseline

    def write(output: Path) -> set[Path]:
        return {KernelStore(output).save(*key, cases) for key, cases in joined.items()}

    return Part(sum(map(len, joined.values())), write)
