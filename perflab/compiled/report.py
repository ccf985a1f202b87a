"""Compiled kernels as text: the table, and the failure of a kernel that got worse. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import PurePath

from perflab.base.data import changed as with_data
from perflab.base.gpu_names import Arch, name_of_arch
from perflab.compiled.machine.reading import loop_lines
from perflab.results.compiled import CompiledCase, KernelResources, case_of
from perflab.results.records import Verdict
from perflab.results.result import Document, Result
from perflab.tables.contents import Case, exact_quantities
from perflab.tables.escaping import lines_of
from perflab.tables.failing import IMPROVED, WIDTH, Quantity, changed, count_fact, count_row, failing_table, wrapped
from perflab.tables.lines import Line, Row, Section, shown_verdict, verdict_text, wrap_facts
from perflab.tables.view import View
from perflab.units import format_bytes

_COLUMNS = (
    ("regs", 5),
    ("spills", 7),
    ("shared", 9),
    ("warps", 6),
    ("limit", 7),
    ("products", 12),
    ("bound", 6),
)
"""The columns of the table with their widths; ``bound``: the share of the tensor cores' peak that can be reached."""
_LIMITS = {"registers": "regs", "shared memory": "shared", "tensor memory": "tensor"}
_TITLE = "kernel "
"""The title of the first column; its length is the width of an architecture's name with the indent."""
_KINDS = ("tcgen05", "wgmma", "mma", "mfma")
_WORSE = {
    "compiling": "no longer compiles",
    "spills": "spills more",
    "tensor cores": "lost tensor-core instructions",
    "tma": "lost TMA",
    "occupancy": "lower occupancy",
    "shared memory": "not enough shared memory",
    "loops": "more work in a loop",
}


def kernel_table(results: Sequence[Result], width: int = WIDTH) -> list[Line]:
    """Return the table of compiled kernels: each kernel's name, with a line for each architecture below.

    The table is ``width`` columns wide, at least 80.
    """
    lines = [Line(f"{_TITLE}{''.join(title.rjust(size) for title, size in _COLUMNS)}  verdict")]
    last = ""
    for row, result in zip(kernel_rows(results, max(width, WIDTH) - 4), results, strict=True):
        assert isinstance(result.outcome, CompiledCase)
        kernel = result.outcome.now
        if kernel.name != last:
            lines.append(Line(kernel.name))
        last = kernel.name
        cells = "".join(row.cells[title].rjust(size) for title, size in _COLUMNS)
        arch = f" {name_of_arch(kernel.arch)}".ljust(len(_TITLE))
        lines.append(Line(f"{arch}{cells}  {row.verdict}", shown_verdict(result)))
        lines += [Line(f"    {text}") for text in row.details]
    return lines


def kernel_rows(results: Sequence[Result], width: int = 10_000) -> list[Row]:
    """Return the rows of the table of compiled kernels, cell by cell."""
    return [
        Row(
            case_of(result.outcome.now.name, result.outcome.now.arch),
            _cells(result.outcome.now.resources),
            verdict_text(result),
            _details(result, width),
        )
        for result in results
        if isinstance(result.outcome, CompiledCase)
    ]


def explain_kernel(result: Result, accept: str | None) -> str:
    """Return the text of a kernel's failure. ``accept`` is the command that saves the kernel as the new baseline."""
    assert isinstance(result.outcome, CompiledCase)
    now, judgement = result.outcome.now, result.judgement
    name = case_of(now.name, now.arch)
    if judgement.worse:
        told = [_WORSE.get(one, one) for one in judgement.worse]
        lines = wrapped(f"{name} is worse than its baseline: {', '.join(told)}")
    elif judgement.verdict is Verdict.FAILED:
        lines = [f"{name} cannot run" if now.resources is not None else f"{name} does not compile"]
    elif judgement.verdict is Verdict.IMPROVED:
        lines = wrapped(f"{name} {IMPROVED}")
    else:
        lines = [f"{name} could not be judged ({judgement.verdict}), and --perf-check fails such cases"]
    if now.problem is not None:
        lines += now.problem.splitlines()
    else:
        if judgement.counts:
            lines += _numbers(result)
        for reason in judgement.reasons:
            lines += wrapped(f"why: {reason}", indent="     ")
    if accept is not None:
        lines.append(f"if intended: {accept}")
    return lines_of("\n".join(lines))


def _cells(here: KernelResources | None) -> dict[str, str]:
    if here is None:
        return {title: "–" for title, _ in _COLUMNS}
    spilled, loop = here.spill_store_bytes + here.spill_load_bytes, here.main_loop
    kinds = [f"{kind} {here.instructions[kind]}" for kind in _KINDS if kind in here.instructions]
    return {
        "regs": str(here.registers),
        "spills": f"{spilled} B" if 0 < spilled < 10_000 else f"{spilled / 1024:.0f} KiB" if spilled else "–",
        "shared": format_bytes(here.shared_bytes),
        "warps": f"{here.warps_per_sm}/{here.max_warps_per_sm}",
        "limit": _LIMITS.get(here.limited_by, here.limited_by),
        "products": kinds[0] if kinds else "–",
        "bound": f"{100 * loop.share_of_peak:.0f} %" if loop is not None and loop.share_of_peak else "–",
    }


def _details(result: Result, width: int) -> list[str]:
    """Return the lines of a kernel's changes, and of the reasons for its verdict."""
    lines = wrap_facts([count_fact(*item) for item in changed(result.judgement.counts).items()], width)
    if result.judgement.verdict is not Verdict.NEW:
        lines += textwrap.wrap("; ".join(result.judgement.reasons), width, break_long_words=False)
    return lines


def _numbers(result: Result) -> list[str]:
    counts = result.judgement.counts
    kept = {name: change for name, change in counts.items() if change.limit is not None or name == "registers"}
    kept |= changed(counts)
    limits = _limits_passed(result)
    rows = []
    for name, change in kept.items():
        label, before, now, changed_by, _, limit = count_row(name, change)
        rows.append(Quantity((label, before, now, changed_by, limits.get(name, limit)), failed=name in limits))
    return failing_table(("", "before", "now", "change", "limit"), rows)


def _limits_passed(result: Result) -> dict[str, str]:
    """Return the limit of each quantity by which the kernel is worse."""
    assert isinstance(result.outcome, CompiledCase)
    here, counts = result.outcome.now.resources, result.judgement.counts
    assert here is not None
    rose = [name for name, change in counts.items() if change.now > change.before]
    in_loops = {name: "exact" for name in rose if name.startswith(("loop_", "code_"))}
    no_room = {name: f"{here.shared_limit_bytes:,}" for name in rose if name.endswith("shared_bytes")}
    if here.shared_bytes <= here.shared_limit_bytes:  # a block exceeds another limit
        no_room = {"blocks_per_sm": "1"}
    passed = {
        "spills": {name: "exact" for name in rose if name.startswith("spill_")},
        "tensor cores": {
            kind: "new" if kind in rose else "kept"
            for kind in _KINDS
            if kind in counts and 0 in (counts[kind].before, counts[kind].now)
        },
        "tma": {"tma": "kept"},
        "occupancy": {"warps_per_sm": "exact"},
        "shared memory": no_room,
        "loops": in_loops,
    }
    return {name: limit for one in result.judgement.worse for name, limit in passed.get(one, {}).items()}


def loops_of_kernels(results: Sequence[Result]) -> list[str]:
    """Return lines on the loops of all kernels that compiled, each kernel after its name."""
    found = []
    for result in results:
        assert isinstance(result.outcome, CompiledCase)
        kernel = result.outcome.now
        if kernel.resources is not None and kernel.resources.loops:
            found += [case_of(kernel.name, kernel.arch), *(f"  {remark}" for remark in kernel.resources.remarks)]
            found += [f"  {line}" for line in loop_lines(kernel.resources.loops, kernel.arch)]
    return found


def lines(document: Document, results: Sequence[Result], width: int, view: View) -> list[Line]:
    """Return the table of compiled kernels with the facts above it."""
    return [*map(Line, wrap_facts(_head(document, results), width)), *kernel_table(results, width)]


def sections(document: Document, results: Sequence[Result], view: View) -> list[Section]:
    """Return the table of compiled kernels as a section of a page."""
    return [Section("kernel", kernel_rows(results), list(results), [_head(document, results)])]


def describe(result: Result, case: Case) -> Case:
    """Return a report's case with the kernel's resources."""
    assert isinstance(result.outcome, CompiledCase)
    now, changes = result.outcome.now, result.judgement.counts
    here = now.resources
    basis = {"triton": now.triton, "ptxas": here.ptxas if here is not None else ""}
    if here is None:
        return with_data(case, compared_by=basis, facts=[name_of_arch(now.arch)])
    names = ("registers", "spill_store_bytes", "spill_load_bytes", "stack_bytes", "shared_bytes", "warps_per_sm")
    values: dict[str, float] = {name: getattr(here, name) for name in names} | here.instructions
    units = {name: "bytes" for name in (*values, *changes) if name.endswith("_bytes")}
    found = exact_quantities(values, changes, units)
    worse = _limits_passed(result)
    found = {name: with_data(one, worse=name in worse) for name, one in found.items()}
    facts = [name_of_arch(now.arch), f"{here.num_warps} warps a block", f"{here.num_stages} stages"]
    facts.append(f"{here.warps_per_sm} of {here.max_warps_per_sm} warps, limited by {here.limited_by}")
    return with_data(case, quantities=found, compared_by=basis, facts=facts)


def _head(document: Document, results: Sequence[Result]) -> list[str]:
    """Return facts of the run: Triton's versions, the assemblers by architecture, the directories of baselines."""
    compiled = [result.outcome.now for result in results if isinstance(result.outcome, CompiledCase)]
    tritons = sorted({kernel.triton for kernel in compiled})
    assemblers: dict[str, set[Arch]] = {}
    for kernel in compiled:
        if kernel.resources is not None and kernel.resources.ptxas:
            assemblers.setdefault(kernel.resources.ptxas, set()).add(kernel.arch)
    told = [f"ptxas {name} (sm_{', '.join(map(str, sorted(archs)))})" for name, archs in sorted(assemblers.items())]
    folders = tritons if document.baselines is not None else []
    stored = [f"{PurePath(document.baselines or '', f'triton-{version}').as_posix()}/" for version in folders]
    return [f"compiled: triton {', '.join(tritons)}", *told, *stored]
