"""Judges a compiled kernel by its registers, spills, shared memory and occupancy, now and in the baseline. Pure.

A compiler is deterministic: there is no noise, and no need to measure again. A case fails in these situations:

- the kernel does not compile, or needs more shared memory (or tensor memory) than a block can have, with or without a
  baseline;
- the kernel spills more than before;
- the kernel's matrix products lost their kind of tensor-core instruction: all of them, or some that now run as an older
  kind;
- the kernel's copies no longer use TMA;
- fewer of the kernel's warps fit onto a multiprocessor at once;
- an iteration of a loop issues other instructions than before, and its least time rose, or it spills more in the loop,
  or it issues more of some kind and not fewer in all. Loops are compared one by one, where they do the same
  tensor-core products, or without products move the same bytes; a kernel without loops is compared as one. If the main
  loop does other products, or moves other bytes (another tile, another unrolling), its least time for as many rose;
  where it has none, or no bound is known, the verdict is ``incomparable``.

Registers, shared memory within the limit, stages and the counts of remaining instructions may change in either
direction without being better or worse: they are only shown. Results are compared only if the same compiler made them.
"""

from __future__ import annotations

from perflab.base.gpu_names import Arch, name_of_arch
from perflab.results.compiled import CompiledCase, CompiledKernel, KernelBaseline, KernelResources, LoopCounts
from perflab.results.records import Change, Judgement, Policy, Verdict
from perflab.results.result import Result

KINDS = ("mfma", "mma", "wgmma", "tcgen05")
"""The kinds of matrix instructions, the weakest of a vendor first."""
_PLACEHOLDERS = "nothing"
_LONGER = 1.01
"""The ratio of least cycles for as many products, or bytes, by which another unrolling, or another tile, is worse."""
_GATED = ("spill_store_bytes", "spill_load_bytes", "warps_per_sm")
_SHOWN = (
    "registers",
    "stack_bytes",
    "static_shared_bytes",
    "dynamic_shared_bytes",
    "tensor_columns",
    "num_warps",
    "num_stages",
    "blocks_per_sm",
)


def judge_compiled(now: CompiledKernel, baseline: KernelBaseline | None, *, any_compiler: bool = False) -> Judgement:
    """Return the judgement of a compiled kernel, by its baseline if there is one.

    ``any_compiler`` compares results of two compilers, to tell what an upgrade does.
    """
    here = now.resources
    before = baseline.resources if baseline is not None else None
    if now.passed_over and (here is None or before is None or not before.fits):
        return Judgement(verdict=Verdict.SKIPPED, reasons=[_passed_over(now)])
    if here is None:
        first = (now.problem or "the compiler gave no message").splitlines()[0]
        reasons = [f"does not compile for {name_of_arch(now.arch)}: {first}"]
        if baseline is None:
            return Judgement(verdict=Verdict.FAILED, reasons=reasons)
        return Judgement(verdict=Verdict.REGRESSED, worse=["compiling"], reasons=reasons)
    too_much = _too_much(here, now.arch)
    if too_much and now.tuned is not None and not now.passed_over:
        too_much.append(f"no configuration of {now.tuned} can run there: its autotuner has nothing to choose")
    if too_much and (before is None or _too_much(before, now.arch)):
        return Judgement(verdict=Verdict.FAILED, reasons=too_much)
    if baseline is None or before is None:
        return Judgement(verdict=Verdict.NEW, reasons=["no baseline yet"])
    foreign = [] if any_compiler else _foreign(now, here, baseline)
    if foreign and too_much:
        return Judgement(verdict=Verdict.FAILED, reasons=[*too_much, *foreign])
    if foreign:
        return Judgement(verdict=Verdict.INCOMPARABLE, reasons=foreign)
    worse, reasons = _worse(here, before)
    if too_much:
        worse, reasons = ["shared memory", *worse], [*too_much, *reasons]
    verdict = Verdict.REGRESSED if worse else Verdict.IMPROVED if _is_better(here, before) else Verdict.OK
    if not worse and (unknown := _unknown(here, before)):
        verdict, reasons = Verdict.INCOMPARABLE, [unknown]
    return Judgement(verdict=verdict, counts=_changes(here, before), worse=worse, reasons=reasons)


def judge_runs(before: Result, now: Result, policy: Policy) -> Judgement | None:
    """Return the judgement of a kernel relative to the same kernel of another run.

    None if the kernel did not compile in the other run, or if one of the results is not that of a kernel.
    """
    base, head = before.outcome, now.outcome
    if not isinstance(base, CompiledCase) or not isinstance(head, CompiledCase) or base.now.resources is None:
        return None
    return judge_compiled(head.now, KernelBaseline(triton=base.now.triton, recorded="", resources=base.now.resources))


def is_broken(kernel: CompiledKernel) -> bool:
    """Whether the kernel cannot run at all, so that no option lets it pass, and it is never saved."""
    return not kernel.passed_over and (kernel.resources is None or not kernel.resources.fits)


def _passed_over(now: CompiledKernel) -> str:
    """Return the reason why the autotuner passes a configuration over."""
    said = (now.problem or "it does not compile").splitlines()[0]
    why = said if now.resources is None else "; ".join(_too_much(now.resources, now.arch))
    return f"the autotuner passes it over on {name_of_arch(now.arch)}: {why}"


def _too_much(here: KernelResources, arch: Arch) -> list[str]:
    """Return the limits that a block exceeds, so that a launch would fail; empty if a launch can run."""
    if here.shared_bytes > here.shared_limit_bytes:
        wanted = f"needs {here.shared_bytes:,} B of shared memory per block"
        return [f"{wanted}, but {name_of_arch(arch)} has {here.shared_limit_bytes:,}"]
    if here.blocks_per_sm == 0:
        return [f"no block fits onto a multiprocessor of {name_of_arch(arch)}: limited by {here.limited_by}"]
    return []


def _foreign(now: CompiledKernel, here: KernelResources, baseline: KernelBaseline) -> list[str]:
    pairs = {"triton": (baseline.triton, now.triton), "ptxas": (baseline.resources.ptxas, here.ptxas)}
    return [
        f"baseline from another compiler: {name} {old} then, {new} now"
        for name, (old, new) in pairs.items()
        if old != new
    ]


def _worse(here: KernelResources, before: KernelResources) -> tuple[list[str], list[str]]:
    """Return the properties by which a kernel is worse than before, and a reason in words for each."""
    found: dict[str, str] = {}
    if _spilled(here) > _spilled(before):
        found["spills"] = (
            f"spills {_spilled(here)} B of registers per thread (stores and loads) instead of {_spilled(before)}"
        )
    products = _products_lost(here, before)
    if products:
        found["tensor cores"] = products
    if before.instructions.get("tma", 0) and not here.instructions.get("tma", 0):
        found["tma"] = "its copies no longer use TMA"
    if here.warps_per_sm < before.warps_per_sm:
        found["occupancy"] = (
            f"{here.warps_per_sm} warps fit onto a multiprocessor at once instead of {before.warps_per_sm}: "
            f"limited by {here.limited_by}"
        )
    spills = _spilled(here) > 0
    loops = [pair for pair in _loops_compared(here, before) if _loop_worse(*pair[1:], spills=spills)]
    if loops:
        found["loops"] = "; ".join(_loop_reason(*pair) for pair in loops)
    elif (other := _other_main_loops(here, before)) and (longer := _times_longer(*other) or 0.0) > _LONGER:
        what = "products" if other[0].flops else "bytes"
        found["loops"] = f"its main loop takes at least ×{longer:.2f} the cycles for as many {what} ({other[0].limit})"
    return list(found), list(found.values())


def _other_main_loops(here: KernelResources, before: KernelResources) -> tuple[LoopCounts, LoopCounts] | None:
    """Return the main loop now and before, if an iteration does other work, so that its counts are not compared."""
    now, was = here.main_loop, before.main_loop
    if now is None or was is None or any(one is now for _, one, _ in _loops_compared(here, before)):
        return None
    return now, was


def _times_longer(now: LoopCounts, was: LoopCounts) -> float | None:
    """Return the ratio of the least cycles for as many products, or bytes of loops without; None without a bound."""
    here, before = ((one.flops, 0) if one.flops else (0, one.global_bytes) for one in (now, was))
    each = [old / new for new, old in zip(here, before, strict=True) if new and old]
    return each[0] * now.least_cycles / was.least_cycles if each and now.cycles and was.cycles else None


def _unknown(here: KernelResources, before: KernelResources) -> str | None:
    """Return why it is not known whether the main loop is worse; None if it is known."""
    other = _other_main_loops(here, before)
    if other is None or _times_longer(*other) is not None:
        return None
    now, was = (
        f"{len(loops)} with {main.total:,} instructions in the main one"
        for loops, main in zip((here.loops, before.loops), other, strict=True)
    )
    remedy = "look at them (perflab kernels --loops), and save them if they are meant"
    return f"its loops do other work, {now} instead of {was}: {remedy}"


def _loops_compared(here: KernelResources, before: KernelResources) -> list[tuple[int, LoopCounts, LoopCounts]]:
    """Return the number of each loop, the loop now and the loop before, if both do the same work.

    Of another number of loops the main ones are compared.
    """
    if len(here.loops) == len(before.loops):
        pairs = list(enumerate(zip(here.loops, before.loops, strict=True), start=1))
    elif here.main_loop is not None and before.main_loop is not None:
        pairs = [(here.loops.index(here.main_loop) + 1, (here.main_loop, before.main_loop))]
    else:
        pairs = []
    return [(number, now, was) for number, (now, was) in pairs if _work(now) == _work(was)]


def _work(loop: LoopCounts) -> dict[str, int]:
    """Return a loop's products by shape; without any, the bytes of global memory that a thread accesses."""
    products = {name: count for name, count in loop.issues.items() if name.startswith("tensor_products")}
    return products or {"bytes": loop.global_bytes}


def _named(number: int, loop: LoopCounts) -> str:
    """Return how a loop's counts are named: ``loop_2``, or ``code`` for a kernel without loops."""
    return "code" if loop.is_all else f"loop_{number}"


def _loop_worse(now: LoopCounts, was: LoopCounts, *, spills: bool) -> bool:
    if now.issues == was.issues:  # cycles alone change with the order of instructions, and with the data sheet
        return False
    rises = _rises(now, was)
    return (
        (bool(was.cycles) and bool(now.cycles) and now.least_cycles > was.least_cycles)
        or (spills and "local_memory" in rises)
        or (bool(rises) and now.total >= was.total)
    )


def _rises(now: LoopCounts, was: LoopCounts) -> dict[str, int]:
    """Return how many more instructions of each kind an iteration issues; placeholders are no work."""
    more = {kind: count - was.issues.get(kind, 0) for kind, count in now.issues.items() if kind != _PLACEHOLDERS}
    return {kind: count for kind, count in more.items() if count > 0}


def _loop_reason(number: int, now: LoopCounts, was: LoopCounts) -> str:
    more = [f"{count} more {kind.replace('_', ' ')}" for kind, count in _rises(now, was).items()]
    told = f"{_named(number, now).replace('_', ' ')} issues {', '.join(more) or 'no more'}"
    if was.cycles and now.least_cycles != was.least_cycles:
        told += f"; an iteration takes at least {now.least_cycles:,.0f} cycles instead of {was.least_cycles:,.0f}"
        told += f" ({now.limit})"
    return told


def _spilled(here: KernelResources) -> int:
    return here.spill_store_bytes + here.spill_load_bytes


def _strongest(here: KernelResources) -> int:
    """Return the index in ``KINDS`` of the newest kind of instruction that a kernel has; -1 if it has none."""
    return max((at for at, kind in enumerate(KINDS) if here.instructions.get(kind)), default=-1)


def _products_lost(here: KernelResources, before: KernelResources) -> str | None:
    was, now = _strongest(before), _strongest(here)
    if was < 0:
        return None
    if now < 0:
        cores = "matrix" if KINDS[was] == "mfma" else "tensor"
        return f"lost {KINDS[was]}: its products no longer run on {cores} cores"
    if now < was:
        return f"lost {KINDS[was]}: its products run as {KINDS[now]} now"
    fallen = [kind for kind in KINDS[:was] if here.instructions.get(kind) and not before.instructions.get(kind)]
    return f"some of its products run as {fallen[0]} now, beside {KINDS[was]}" if fallen else None


def _is_better(here: KernelResources, before: KernelResources) -> bool:
    return (
        _spilled(here) < _spilled(before)
        or _strongest(here) > _strongest(before)
        or here.warps_per_sm > before.warps_per_sm
        or any(now.total < was.total for _, now, was in _loops_compared(here, before))
    )


def _changes(here: KernelResources, before: KernelResources) -> dict[str, Change]:
    """Return the change of every quantity, the most important first; ``limit`` is set on gated quantities."""
    old = {name: getattr(before, name) for name in (*_GATED, *_SHOWN)} | before.instructions
    new = {name: getattr(here, name) for name in (*_GATED, *_SHOWN)} | here.instructions
    in_loops: list[str] = []
    for number, now, was in _loops_compared(here, before):
        for row, loop in ((old, was), (new, now)):
            row |= {f"{_named(number, now)}_{kind}": count for kind, count in loop.issues.items()}
            row |= {f"{_named(number, now)}_least_cycles": round(loop.least_cycles)}
        own = [name for name in (*old, *new) if name.startswith(f"{_named(number, now)}_")]
        in_loops += [name for name in own if old.get(name, 0) != new.get(name, 0)]
    order = ["registers", *_GATED, *_SHOWN, *KINDS, "tma", *in_loops]
    return {
        name: Change.exact(old.get(name, 0), new.get(name, 0), 1.0 if name in (*_GATED, *in_loops) else None)
        for name in dict.fromkeys(order)
        if old.get(name, 0) or new.get(name, 0)
    }
