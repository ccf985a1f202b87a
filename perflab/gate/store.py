"""Baselines on disk: ``baselines/<environment>/<test module>.json``, reviewed as diffs, never half written.

A file that cannot be understood is an error that names the file, the place and the remedy; it is left as it is.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import msgspec

from perflab.environment import differences, slug
from perflab.errors import BaselineError
from perflab.records import Data, Entry, Environment, OutOfMemory, Parameters, Replicate, to_plain

SCHEMA = 1


class StoredCase(Data, frozen=True):
    """An entry as it stands in a file: ``environment`` is the name of one of the file's."""

    environment: str
    recorded: str
    replicates: list[Replicate]
    parameters: Parameters = {}
    out_of_memory: OutOfMemory | None = None


class BaselineFile(Data, frozen=True):
    """One file. Environments stand once, and cases name theirs, so that a case reads as one short block."""

    schema: int
    environments: dict[str, Environment]
    cases: dict[str, StoredCase]


class _Header(msgspec.Struct):
    schema: int


class BaselineStore:
    """The baselines directory. Files are read once and when first needed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[Path, dict[str, Entry]] = {}

    def path_for(self, case: str, environment: Environment) -> Path:
        """The file in which the case's baseline lives, or would."""
        return self.directory / slug(environment) / f"{_module_of(case)}.json"

    def entry(self, case: str, environment: Environment) -> Entry | None:
        """The case's baseline, or None.

        Where this environment has none, the closest one of another environment is returned, so that the judge
        can say what differs instead of calling the case new.

        Raises:
            BaselineError: a file is damaged or foreign.
        """
        name = _name_of(case)
        own = self.load(self.path_for(case, environment)).get(name)
        if own is not None:
            return own
        others = [
            entry
            for path in sorted(self.directory.glob(f"*/{_module_of(case)}.json"))
            if (entry := self.load(path).get(name)) is not None
        ]
        return min(others, key=lambda e: len(differences(e.environment, environment)), default=None)

    def load(self, path: Path) -> Mapping[str, Entry]:
        """All entries of one file; none if there is no such file.

        Raises:
            BaselineError: the file cannot be read, is no JSON, or is not one of ours.
        """
        if path not in self._files:
            self._files[path] = _read(path)
        return self._files[path]

    def check_writable(self) -> None:
        """Make sure that baselines could be saved, before anybody waits for a measurement.

        Raises:
            BaselineError: the directory cannot be made or written to.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            raise _unwritable(self.directory, error) from error

    def save(self, entries: Mapping[str, Entry]) -> list[Path]:
        """Add or replace the entries of cases (node id -> entry); all others stay. Returns the files written.

        Raises:
            BaselineError: a file cannot be read first, or cannot be written.
        """
        by_path: dict[Path, dict[str, Entry]] = {}
        for case, entry in entries.items():
            by_path.setdefault(self.path_for(case, entry.environment), {})[_name_of(case)] = entry
        for path, new in by_path.items():
            self._files.pop(path, None)  # somebody may have written since: read again, and merge into that
            _write(path, {**self.load(path), **new})
            self._files.pop(path)
        return sorted(by_path)


def _module_of(case: str) -> str:
    """``tests/perf/test_x.py::test_y[a]`` -> ``tests.perf.test_x``, so that equal names do not collide."""
    module = case.split("::", 1)[0].removesuffix(".py")
    return quote(module.replace("/", "."), safe="")


def _name_of(case: str) -> str:
    return str(_writable(case.split("::", 1)[-1]))


def _read(path: Path) -> dict[str, Entry]:
    remedy = "restore it (git checkout), or delete it and run with --perf-update-new"
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BaselineError(f"cannot read the baseline file {path}: {error.strerror}", "check its rights") from error
    try:
        text = raw.decode("utf-8")
        json.loads(text, parse_constant=_no_number)  # its errors carry a line and a column, msgspec's an offset
        if msgspec.json.decode(text, type=_Header).schema > SCHEMA:
            raise BaselineError(f"{path} was written by a newer perflab", "upgrade perflab")
        file = msgspec.json.decode(text, type=BaselineFile)
        return {
            name: Entry(
                environment=file.environments[case.environment],
                recorded=case.recorded,
                replicates=case.replicates,
                parameters=case.parameters,
                out_of_memory=case.out_of_memory,
            )
            for name, case in file.cases.items()
        }
    except UnicodeDecodeError as error:
        raise BaselineError(f"baseline file {path} is damaged: not UTF-8 at byte {error.start}", remedy) from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise BaselineError(f"baseline file {path} is damaged at {place}", remedy) from error
    except KeyError as error:
        raise BaselineError(f"baseline file {path} names an unknown environment {error}", remedy) from error
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise BaselineError(f"{path} is not a perflab baseline file: {error}", remedy) from error


def _write(path: Path, entries: Mapping[str, Entry]) -> None:
    """Write to a temporary file and rename: a reader meets the old file or the new one, never half."""
    temporary: Path | None = None
    try:
        content = _format(entries).encode("utf-8")  # first, so that what can go wrong with it leaves no file behind
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
        temporary = None
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()


def _unwritable(path: Path, error: OSError) -> BaselineError:
    return BaselineError(
        f"cannot write baselines to {path}: {error.strerror}",
        "name a writable directory with --perf-baselines=DIR; what was measured stands in .perflab/",
    )


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
        fields["parameters"] = {key: _writable(value) for key, value in entry.parameters.items()}
        replicates = fields.pop("replicates")
        lines = [f"      {_json(field)}: {_json(value)}" for field, value in sorted(fields.items())]
        rows = ",\n".join(f"        {_json(replicate)}" for replicate in replicates)
        lines.append('      "replicates": [' + (f"\n{rows}\n      ]" if rows else "]"))
        blocks.append(f"    {_json(name)}: {{\n" + ",\n".join(lines) + "\n    }")
    environments = ",\n".join(f"    {_json(key)}: {_json(to_plain(names[key]))}" for key in sorted(names))
    cases = ",\n".join(blocks)
    return f'{{\n  "schema": {SCHEMA},\n  "environments": {{\n{environments}\n  }},\n  "cases": {{\n{cases}\n  }}\n}}\n'


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)


def _writable(value: object) -> object:
    """A parameter as JSON can hold it: infinities and halves of a character as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value


def _no_number(constant: str) -> float:
    raise ValueError(f"{constant} is no number")
