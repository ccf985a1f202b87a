"""Makes SQLite exports as Nsight Systems writes them, with CUDA work, by its documented schema: of several versions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

PID, MAIN, AUTOGRAD = 4321, 4321, 4400
US = 1000
CASE = "tests/perf/test_step.py::test_step[small]"

_STRINGS = "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)"
_RUNTIME = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER"
    " NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL{0})"
)
_KERNEL = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,"
    " contextId INTEGER NOT NULL,{0} streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName"
    " INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER,"
    " registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL,"
    " blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL,"
    " dynamicSharedMemory INTEGER NOT NULL, localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL,"
    " gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER)"
)
_COPY = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,"
    " contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER"
    " NOT NULL, copyKind INTEGER NOT NULL)"
)
_GRAPH = (
    "CREATE TABLE IF NOT EXISTS CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId"
    " INTEGER NOT NULL, contextId INTEGER NOT NULL,{0} streamId INTEGER NOT NULL, correlationId INTEGER, globalPid"
    " INTEGER, graphId INTEGER NOT NULL, graphExecId INTEGER NOT NULL, originalGraphId INTEGER)"
)
_NVTX = (
    "CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,"
    " category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,"
    " domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER,"
    " int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT{0})"
)


@dataclass(frozen=True)
class Layout:
    """What differs between versions."""

    product: str
    schema: str
    metadata: str
    registered: bool
    """Whether a range's name stands among the strings."""
    newer: bool


LAYOUTS = (
    Layout("2021.5.2.53", "2.7.1", "EXPORT_META_DATA", registered=False, newer=False),
    Layout("2022.4.2.1", "3.0.0", "EXPORT_META_DATA", registered=False, newer=False),
    Layout("2025.3.1.90", "3.20.3", "META_DATA_EXPORT", registered=True, newer=True),
)


def global_tid(thread: int, process: int = PID) -> int:
    """The serialized identifier of a thread."""
    return 1 << 48 | process << 24 | thread


@dataclass
class Maker:
    """An export that is being made."""

    path: Path
    layout: Layout = LAYOUTS[1]
    strings: dict[str, int] = field(default_factory=dict)
    correlations: Iterator[int] = field(default_factory=lambda: count(100))

    def __post_init__(self) -> None:
        self.connection = sqlite3.connect(self.path)
        newer = self.layout.newer
        for statement in (
            _STRINGS,
            _RUNTIME.format(", callchainId INTEGER" if newer else ""),
            _KERNEL.format(" greenContextId INTEGER," if newer else ""),
            _COPY,
            _NVTX.format(", binaryData TEXT" if newer else ""),
            f"CREATE TABLE {self.layout.metadata} (name TEXT NOT NULL, value TEXT)",
            "CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT)",
            "CREATE TABLE ThreadNames (nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER)",
        ):
            self.connection.execute(statement)
        for name, value in (("PRODUCT_VERSION", self.layout.product), ("SCHEMA_VERSION", self.layout.schema)):
            self.insert(self.layout.metadata, [(f"EXPORT_{name}", value)], "name, value")
        self.graph_statement = _GRAPH.format(" greenContextId INTEGER," if newer else "")
        self.thread(MAIN, "python")
        self.thread(AUTOGRAD, "pt_autograd_0")
        self.process(PID, "python")

    def process(self, pid: int, name: str) -> None:
        """Name a process."""
        self.insert("PROCESSES", [(global_tid(0, pid), pid, name)], "globalPid, pid, name")

    def thread(self, thread: int, name: str) -> None:
        """Name a thread."""
        self.insert("ThreadNames", [(self.string(name), 20, global_tid(thread))], "nameId, priority, globalTid")

    def insert(self, table: str, rows: Iterable[tuple[object, ...]], columns: str) -> None:
        """Rows of a table; what is not named is 0 where something must be."""
        named = columns.split(", ")
        info = self.connection.execute(f"PRAGMA table_info({table})").fetchall()
        forced = [name for _, name, _, needed, *_ in info if needed and name not in named]
        places = ", ".join([*("?" for _ in named), *("0" for _ in forced)])
        self.connection.executemany(f"INSERT INTO {table} ({', '.join([*named, *forced])}) VALUES ({places})", rows)

    def string(self, text: str) -> int:
        """The number of a text."""
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.connection.execute("INSERT INTO StringIds VALUES (?, ?)", (self.strings[text], text))
        return self.strings[text]

    def range(
        self, text: str, start: int, end: int | None, thread: int = MAIN, *, started: bool = False, domain: int = 0
    ) -> None:
        """A push/pop range, or a start/end range. Moments are nanoseconds."""
        held = (None, self.string(text)) if self.layout.registered else (text, None)
        tid = thread if thread > 1 << 40 else global_tid(thread)
        row = (start, end, 60 if started else 59, *held, tid, domain)
        self.insert("NVTX_EVENTS", [row], "start, end, eventType, text, textId, globalTid, domainId")

    def launch(
        self, kernel: str, called: int, start: int, end: int, thread: int = MAIN, process: int = PID, device: int = 0
    ) -> None:
        """A kernel, or a ``copy``, or a ``graph 7``; and the call of CUDA that launched it, which takes 3 µs."""
        correlation = next(self.correlations)
        tid = global_tid(thread, process)
        is_graph = kernel.startswith("graph ")
        api = "cudaGraphLaunch_v10000" if is_graph else "cudaLaunchKernel_v7000"
        call = (called, called + 3 * US, tid, correlation, self.string(api))
        self.insert("CUPTI_ACTIVITY_KIND_RUNTIME", [call], "start, end, globalTid, correlationId, nameId")
        common, pid = "start, end, correlationId, globalPid, deviceId", global_tid(0, process)
        if kernel == "copy":
            self.insert(
                "CUPTI_ACTIVITY_KIND_MEMCPY", [(start, end, correlation, pid, device, 1)], f"{common}, copyKind"
            )
            return
        if is_graph:  # as nsys, which makes a table when it is needed
            self.connection.execute(self.graph_statement)
            graph = int(kernel.removeprefix("graph "))
            row = (start, end, correlation, pid, device, graph, graph + 1)
            self.insert("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", [row], f"{common}, graphId, graphExecId")
            return
        names = (self.string(f"void at::native::{kernel}<float>(int, float*)"), self.string(kernel))
        row = (start, end, correlation, pid, device, *names)
        self.insert("CUPTI_ACTIVITY_KIND_KERNEL", [row], f"{common}, demangledName, shortName")

    def close(self) -> Path:
        """Write it."""
        self.connection.commit()
        self.connection.close()
        return self.path


@dataclass(frozen=True)
class Op:
    """An operator of the step that the export shows."""

    phase: str
    name: str
    sizes: str
    module: str
    kernel: str
    us: int
    sequence: int = -1
    node: str = ""
    part: str = ""


_ATTENTION = "blocks.*.attention"
OPS = (
    Op("forward", "aten::addmm", "[[768], [512, 256], [256, 768], [], []]", f"{_ATTENTION}.q", "gemm", 40, 1),
    Op("forward", "aten::bmm", "[[8, 512, 32], [8, 32, 512]]", _ATTENTION, "bmm", 30, 2, part="attention: scores"),
    Op("forward", "aten::_softmax", "[[8, 512, 512], [], []]", _ATTENTION, "softmax", 50, 3, part="attention: softmax"),
    Op("forward", "aten::bmm", "[[8, 512, 512], [8, 512, 32]]", _ATTENTION, "bmm", 30, 4, part="attention: values"),
    Op("backward", "aten::bmm", "[[8, 512, 512], [8, 512, 32]]", "", "bmm_back", 60, 4, "BmmBackward0"),
    Op("backward", "aten::_softmax_backward_data", "[[8, 512, 512], [8, 512, 512], [], []]", "", "softmax_back", 70, 3,
       "SoftmaxBackward0"),
    Op("backward", "aten::bmm", "[[8, 512, 512], [8, 512, 32]]", "", "bmm_back", 60, 2, "BmmBackward0"),
    Op("backward", "aten::mm", "[[768, 512], [512, 256]]", "", "gemm", 80, 1, "AddmmBackward0"),
    Op("optimizer", "aten::_foreach_add_", "[[768, 256], [], []]", "", "foreach", 20),
    Op("optimizer", "", "", "", "copy", 10),
)  # fmt: skip
BUSY_US = sum(op.us for op in OPS)
CALL_US = 1000
_EVERY_US = 60


def write_call(maker: Maker, begin: int, device_free: int, *, operators: bool) -> int:
    """One call of a training step, its backward from another thread; returns when the device is done."""
    maker.range("call", begin, begin + (CALL_US - 50) * US, started=True)
    at, ends = begin + 10 * US, {}
    for number, op in enumerate(OPS):
        thread = AUTOGRAD if op.phase == "backward" else MAIN
        start, end = at + number * _EVERY_US * US, at + (number + 1) * _EVERY_US * US - 5 * US
        ends.setdefault(op.phase, [start - US, 0])[1] = end + US
        if op.part:
            maker.range(op.part, start, end, started=True)
        if operators:
            _write_operator(maker, op, start, end, thread, begin)
        called = start + 15 * US
        device_free = max(device_free, called + 6 * US)
        maker.launch(op.kernel, called, device_free, device_free + op.us * US, thread)
        device_free += op.us * US
    for phase, (start, end) in ends.items():
        maker.range(phase, start, end, started=True)
    return device_free


def _write_operator(maker: Maker, op: Op, start: int, end: int, thread: int, begin: int) -> None:
    sequence = f", seq = {op.sequence + begin // US}" if op.sequence >= 0 else ""
    if op.module:
        maker.range(f"perflab: at {op.module} | model.py:{40 + op.sequence}, op_id = 1", start, end, thread)
    if op.node:
        maker.range(f"autograd::engine::evaluate_function: {op.node}, op_id = 2", start, end, thread)
        maker.range(f"{op.node}{sequence}, op_id = 3, sizes = [[8]]", start + US, end - US, thread)
        sequence = ""
    if op.phase == "optimizer":
        maker.range("Optimizer.step#SGD.step, op_id = 4", start, end, thread)
    if op.name:
        text = f"{op.name}{sequence}, op_id = 5, sizes = {op.sizes}, input_op_ids = [(0,-1)]"
        maker.range(text, start + 5 * US, end - 5 * US, thread)


def write_run(path: Path, layout: Layout = LAYOUTS[1], calls: int = 8, with_operators: int = 4) -> Path:
    """A run of one case: samples, and a few calls with operators."""
    maker = Maker(path, layout)
    at = free = 5_000_000
    for name, number, operators in (
        ("warm-up", 2, False),
        ("samples", calls, False),
        ("operators", with_operators, True),
    ):
        began = at
        for _ in range(number):
            free = write_call(maker, at, free, operators=operators)
            at += CALL_US * US
        maker.range(f"{CASE}: {name}", began - US, at + US, started=True)
        at += 5000 * US
    return maker.close()
