"""Opens a SQLite export of Nsight Systems, and reads its version, tables, processes and threads.

The schema is documented in Nsight Systems' "SQLite Schema Reference". Tables are made only if needed, so any may be
missing; columns were added over the years. Queries access tables and columns by name, and write nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from perflab.base.files import open_regular
from perflab.nsys.errors import ExportError

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
FILLS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
API = "CUPTI_ACTIVITY_KIND_RUNTIME"
RANGES = "NVTX_EVENTS"
STRINGS = "StringIds"
WORK = (KERNELS, COPIES, FILLS, GRAPHS)
"""Tables of the device's work. A launch of a CUDA graph is one row, or one row per kernel, by nsys's flags."""
_OURS = (*WORK, API, RANGES)
_NEEDED = {
    **dict.fromkeys(WORK, ("start", "end", "correlationId")),
    API: ("start", "end", "correlationId", "globalTid"),
    RANGES: ("start", "end", "eventType", "globalTid"),
    STRINGS: ("id", "value"),
}
_VERSIONS = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""Tables with the version of nsys that wrote the export: the current name, and the name in 2022."""
_HEADER = b"SQLite format 3\x00"
_AGAIN = "export it again: nsys export --type=sqlite --force-overwrite=true REPORT.nsys-rep"
_CACHE_KIB = 65536
LONGEST_NS = 7 * 86_400 * 10**9
"""The longest duration that is a measurement, a week; a longer one comes from an end that was never written."""
_KINDS = {"INTEGER": ("integer", "whole number"), "TEXT": ("text", "text")}
"""SQLite's name of the values' type, and the name in error messages, by the declared type of a column."""


def thread_of(global_id: int) -> int:
    """Return the thread number in a serialized identifier."""
    return global_id & 0xFFFFFF


@dataclass(frozen=True)
class Export:
    """An export that is open for reading."""

    path: Path
    connection: sqlite3.Connection

    def rows(self, query: str, *values: Any) -> Iterator[Any]:
        """Yield the rows of a query.

        Raises:
            ExportError: the file is damaged where the query reads.
        """
        try:
            for row in self.connection.execute(query, values):  # noqa: UP028 - that closes cursors of a closed file
                yield row
        except sqlite3.DatabaseError as error:
            raise ExportError(f"{self.path} is damaged: {error}", _AGAIN) from error
        except UnicodeDecodeError as error:  # from SQLite's message, which quotes the file
            raise ExportError(f"{self.path} is damaged: {error.object.decode(errors='replace')}", _AGAIN) from error

    @cached_property
    def tables(self) -> dict[str, frozenset[str]]:
        """The columns of each table, by table. Views are left out, because nsys makes none."""
        names = [name for (name,) in self.rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: frozenset(row[1] for row in self.rows(f"PRAGMA table_info({quoted(name)})")) for name in names}

    def has(self, table: str) -> bool:
        """Whether the export has a table.

        Raises:
            ExportError: the table lacks columns that it has in every version.
        """
        if table not in self.tables:
            return False
        if missing := [name for name in _NEEDED.get(table, ()) if name not in self.tables[table]]:
            raise ExportError(
                f"{self.path}: {table} has no column {', '.join(missing)}, but {', '.join(sorted(self.tables[table]))}",
                "this version of Nsight Systems writes another schema: export it with a version from 2021 on",
            )
        return True

    def missing(self) -> list[str]:
        """Return sentences on the data that cannot be read, each with the missing table."""
        has_work = any(map(self.has, WORK))
        without = (
            ("ranges", RANGES, self.has(RANGES), "trace nvtx too"),
            ("kernels", "of CUDA work", has_work, "trace cuda too, on a GPU"),
            ("the ranges of kernels", API, self.has(API) or not has_work, "trace cuda too, and export all tables"),
            ("names of kernels, and of ranges that have them there", STRINGS, self.has(STRINGS), "export all tables"),
        )
        return [
            f"could not look at {what}, because the export has no table {table}: {remedy}"
            for what, table, is_there, remedy in without
            if not is_there
        ]

    def odd_value(self) -> str:
        """Describe the first value whose type is not that of its column: SQLite takes any value anywhere."""
        for table in filter(self.tables.__contains__, (*_OURS, STRINGS, "PROCESSES", "ThreadNames")):
            for _, column, declared, *_ in self.rows(f"PRAGMA table_info({quoted(table)})"):
                kind, said = _KINDS.get(declared.upper(), ("", ""))
                must_be = column == "start" or (column == "end" and table != RANGES)
                known = (kind,) if must_be else (kind, "null")
                odd = f"typeof({quoted(column)}) NOT IN ({', '.join(map(repr, known))})"
                found = next(self.rows(f"SELECT rowid, {quoted(column)} FROM {table} WHERE {odd} LIMIT 1"), None)
                if kind and found is not None:
                    return f"{table}, row {found[0]}: {column} is {found[1]!r:.40}, which is no {said}"
        return "a number is too large"

    @cached_property
    def version(self) -> str:
        """The version of nsys and of the schema, such as ``2022.4.2.1, schema 3.0.0``; ``""`` if not stated."""
        for table in _VERSIONS:
            if {"name", "value"} <= self.tables.get(table, frozenset()):
                found = dict(self.rows(f"SELECT name, value FROM {table}"))
                product, schema = (found.get(f"EXPORT_{what}_VERSION") for what in ("PRODUCT", "SCHEMA"))
                return ", ".join([*([str(product)] if product else []), *([f"schema {schema}"] if schema else [])])
        return ""

    @cached_property
    def process_names(self) -> dict[int, str]:
        """The names of processes, by process number."""
        if not {"globalPid", "name"} <= self.tables.get("PROCESSES", frozenset()):
            return {}
        rows = self.rows("SELECT globalPid, name FROM PROCESSES WHERE globalPid IS NOT NULL")
        return {pid >> 24 & 0xFFFFFF: str(name) for pid, name in rows}

    @cached_property
    def thread_names(self) -> dict[int, str]:
        """The names of threads, by serialized identifier."""
        if not {"nameId", "globalTid"} <= self.tables.get("ThreadNames", frozenset()) or not self.has(STRINGS):
            return {}
        rows = self.rows("SELECT globalTid, value FROM ThreadNames JOIN StringIds ON StringIds.id = nameId")
        return {tid: str(name) for tid, name in rows if tid is not None}

    @cached_property
    def processes(self) -> list[int]:
        """The processes that launched work; if none did, the processes that opened ranges."""
        calling = self._processes_in(API, "globalTid")
        if not calling:
            calling = set().union(*(self._processes_in(table, "globalPid") for table in WORK))
        return sorted(calling or self.processes_with_ranges)

    @cached_property
    def processes_with_ranges(self) -> set[int]:
        """The processes that opened ranges, whether or not they launched work."""
        return self._processes_in(RANGES, "globalTid")

    def _processes_in(self, table: str, column: str) -> set[int]:
        if not self.has(table) or column not in self.tables[table]:
            return set()
        query = f"SELECT DISTINCT {column} >> 24 & 16777215 FROM {table} WHERE {column} IS NOT NULL"
        return {pid for (pid,) in self.rows(query)}


def quoted(name: str) -> str:
    """Quote a name of any characters for a query."""
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def opened(path: Path) -> Iterator[Export]:
    """Open an export for the length of the block.

    Raises:
        ExportError: the file is missing, no SQLite file, cut off, or not of Nsight Systems.
    """
    _check(path)
    address = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        export = Export(path, connection)
        next(export.rows(f"PRAGMA cache_size = -{_CACHE_KIB}"), None)
        if not any(table in export.tables for table in _OURS):
            known = ", ".join(sorted(export.tables)[:8]) or "none"
            raise ExportError(
                f"{path} has no table of Nsight Systems with ranges or CUDA work; its tables: {known}",
                "give an export of a run that was traced with --trace=cuda,nvtx, or make one: perflab nsys -- COMMAND",
            )
        yield export


def is_sqlite(path: Path) -> bool:
    """Whether a file begins with the header of SQLite files."""
    with open_regular(path) as file:
        return file.read(len(_HEADER)) == _HEADER


def _check(path: Path) -> None:
    """Refuse a file that is not a whole SQLite file, before its content is read."""
    try:
        with open_regular(path) as file:
            header = file.read(100)
            held_bytes = file.seek(0, 2)
    except FileNotFoundError as error:
        raise ExportError(f"{path} does not exist", "give the .sqlite file that nsys exported") from error
    except IsADirectoryError as error:
        raise ExportError(f"{path} is a directory", "give the .sqlite file that nsys exported") from error
    if not header.startswith(_HEADER) or len(header) < 100:
        raise ExportError(f"{path} is not a SQLite file", f"give an export of Nsight Systems; {_AGAIN}")
    page_bytes = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    wanted_bytes = (65536 if page_bytes == 1 else page_bytes) * pages
    if held_bytes < wanted_bytes:
        raise ExportError(f"{path} is cut off: {held_bytes:,} of {wanted_bytes:,} bytes are there", _AGAIN)
