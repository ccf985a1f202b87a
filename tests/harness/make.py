"""Records with sensible defaults, so that a test names only what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from perflab.base.data import changed
from perflab.judging import judge as judging
from perflab.judging.kept import exact_successor, times_successor
from perflab.measured.baselines import split
from perflab.predicted.judge.judge import baseline_of, judge_predicted
from perflab.results.compiled import CompiledKernel, KernelBaseline, KernelResources
from perflab.results.documents import SCHEMA
from perflab.results.measured import Baseline, ComparedCase, Entry, MeasuredCase
from perflab.results.measurement import Beside, Measurement, Memory, Ratio, Record, Replicate
from perflab.results.peak import PeakPart
from perflab.results.predicted import Cost, Fit, PredictedBaseline, PredictedCase, Prediction, SavedTensors
from perflab.results.records import Environment, Judgement, Policy, Verdict
from perflab.results.result import Document, Result
from perflab.store.times import BaselineStore

CASE = "tests/perf/test_transformer.py::test_step[small-128-fp32]"
MS = 1_000_000
"""A millisecond in nanoseconds."""
GIB = 2**30
"""In bytes."""


def environment(**changes: Any) -> Environment:
    """A CPU machine."""
    fields: dict[str, Any] = {
        "device": "cpu",
        "device_name": "AMD EPYC (family 25, model 17)",
        "cores": 2,
        "threads": 2,
        "isa": "AVX2",
        "system": "Linux x86_64",
        "python": "3.11",
        "torch": "2.13.0",
    }
    return Environment(**{**fields, **changes})


def cuda_environment(**changes: Any) -> Environment:
    """The same machine with a GPU, which is what is measured."""
    fields = {"device": "cuda", "device_name": "NVIDIA H200", "cuda": "13.0", "driver": "580.65.06"}
    return environment(**{**fields, **changes})


def memory(peak_bytes: int) -> Memory:
    """Nothing held, everything grown."""
    return Memory(peak_bytes=peak_bytes, held_bytes=0, growth_bytes=peak_bytes)


def replicate(median_ns: float = 100.0 * MS, *, peak_bytes: int | None = None, **changes: Any) -> Replicate:
    """A quiet measurement: the fastest sample is 1 % below the median."""
    fields: dict[str, Any] = {
        "median_ns": median_ns,
        "fastest_ns": 0.99 * median_ns,
        "mean_ns": median_ns,
        "std_ns": 0.01 * median_ns,
        "noise": 0.002,
        "samples": 30,
        "memory": memory(peak_bytes) if peak_bytes is not None else None,
    }
    return Replicate(**{**fields, **changes})


def measurement(samples_ns: Sequence[int] = (1,), **changes: Any) -> Measurement:
    """Samples of one call each, by the host's clock."""
    fields: dict[str, Any] = {"repetitions": 1, "warmup_calls": 3, "settled": True, "clock": "host"}
    return Measurement(samples_ns=list(samples_ns), **{**fields, **changes})


def entry(replicates: Sequence[Replicate] | None = None, **changes: Any) -> Entry:
    """A baseline of three quiet replicates of 100 ms, unless others are given."""
    fields: dict[str, Any] = {
        "environment": environment(),
        "recorded": "2025-11-20",
        "replicates": list(replicates) if replicates is not None else quiet(100.0 * MS),
    }
    return Entry(**{**fields, **changes})


def judge(record: Record, saved: Entry | Baseline | None, policy: Policy) -> Judgement:
    """A case beside what was saved of it: an entry is stored as saving does it, exact quantities apart from times."""
    if saved is None:
        return judging.judge(record, Baseline(), policy)
    return judging.judge(record, split(saved) if isinstance(saved, Entry) else saved, policy)


def successor(old: Entry | Baseline | None, new: Entry, policy: Policy, reason: str | None) -> Baseline:
    """What is stored once a session's measurement has taken the place of what was stored."""
    stored = old if isinstance(old, Baseline) else split(old) if old is not None else Baseline()
    measured = split(new)
    assert measured.times is not None
    return Baseline(
        times=times_successor(stored.times, measured.times, policy, reason),
        exact=exact_successor(stored.exact, measured.exact, policy, reason) if measured.exact is not None else None,
    )


def closest(store: BaselineStore, case: str, machine: Environment) -> Entry | None:
    """The times that a store holds of a case, of this machine or else of the closest one."""
    return next(iter(store.entries(case, machine)), None)


def quiet(median_ns: float, **changes: Any) -> list[Replicate]:
    """Three replicates that agree to 0.2 %."""
    return [replicate(share * median_ns, **changes) for share in (0.999, 1.0, 1.001)]


def record(summary: Replicate | None = None, **changes: Any) -> Record:
    """What a session learned of ``CASE``: 100 ms, not yet measured again."""
    fields: dict[str, Any] = {
        "case": CASE,
        "environment": environment(),
        "summary": summary if summary is not None else replicate(),
    }
    return MeasuredCase(**{**fields, **changes})


def compared(held: Record, **changes: Any) -> ComparedCase:
    """The same record, of an A/B comparison."""
    return ComparedCase(**{**{name: getattr(held, name) for name in held.__struct_fields__}, **changes})


def result(case: str = CASE, verdict: Verdict = Verdict.OK, **changes: Any) -> Result:
    """A case of the given verdict; ``outcome`` and ``judgement`` may be given whole."""
    fields: dict[str, Any] = {"case": case, "outcome": record(), "judgement": Judgement(verdict=verdict)}
    return Result(**{**fields, **changes})


def in_turns(base: Result, *rows: Result) -> list[Result]:
    """The base and these rows, as turns leave them whose ratios are those of the medians, within one percent."""

    def ratio(now_ns: float, base_ns: float) -> Ratio:
        return Ratio(value=now_ns / base_ns, low=0.99 * now_ns / base_ns, high=1.01 * now_ns / base_ns)

    assert base.record is not None
    before, found = base.record.summary, [base]
    assert before is not None
    for row in rows:
        assert row.record is not None
        now = row.record.summary
        assert now is not None
        phases = {name: ratio(ns, before.phases_ns[name]) for name, ns in now.phases_ns.items()}
        call = ratio(now.median_ns, before.median_ns)
        taken = Beside(base=base.case, base_ns=before.median_ns, call=call, phases=phases)
        found.append(changed(row, beside=[*row.beside, taken]))
    return found


def document(*results: Result, **changes: Any) -> Document:
    """A run of these results that ended well."""
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "perflab": "0.1.0",
        "created": datetime(2025, 11, 20, 12, 0, tzinfo=UTC),
        "exitstatus": 0,
        "baselines": "baselines",
        "threshold": 0.05,
        "results": list(results),
    }
    return Document(**{**fields, **changes})


def resources(**changes: Any) -> KernelResources:
    """An attention kernel on Hopper: no spills, wgmma and TMA, two blocks of eight warps."""
    fields: dict[str, Any] = {
        "ptxas": "13.4.59",
        "num_warps": 8,
        "num_stages": 3,
        "registers": 100,
        "stack_bytes": 0,
        "spill_store_bytes": 0,
        "spill_load_bytes": 0,
        "static_shared_bytes": 0,
        "dynamic_shared_bytes": 65_536,
        "shared_limit_bytes": 232_448,
        "blocks_per_sm": 2,
        "warps_per_sm": 16,
        "max_warps_per_sm": 64,
        "limited_by": "registers",
        "instructions": {"wgmma": 16, "tma": 4},
    }
    return KernelResources(**{**fields, **changes})


def kernel(here: KernelResources | None = None, **changes: Any) -> CompiledKernel:
    fields: dict[str, Any] = {"registration": "kernels:EXAMPLES", "name": "attend", "arch": 90, "triton": "3.9.0"}
    if here is None and "problem" not in changes:
        here = resources()
    return CompiledKernel(**{**fields, "resources": here, **changes})


def baseline(here: KernelResources | None = None, **changes: Any) -> KernelBaseline:
    fields: dict[str, Any] = {"triton": "3.9.0", "recorded": "2026-11-21", "resources": here or resources()}
    return KernelBaseline(**{**fields, **changes})


def part(category: str, module: str, operator: str, size_bytes: int, blocks: int = 1, line: str = "") -> PeakPart:
    return PeakPart(
        category=category, module=module, operator=operator, size_bytes=size_bytes, blocks=blocks, line=line
    )


def cost(module: str, operator: str, calls: int = 32, **changes: Any) -> Cost:
    """Of a forward pass; no products unless they are given."""
    fields: dict[str, Any] = {"phase": "forward", "bytes_moved": 1024 * calls, "line": "model.py:40"}
    return Cost(module=module, operator=operator, calls=calls, **{**fields, **changes})


def saved(module: str, shape: list[int], size_bytes: int, count: int = 32, **changes: Any) -> SavedTensors:
    fields: dict[str, Any] = {"line": "model.py:42", "operator": "aten::_softmax", "dtype": "float32"}
    return SavedTensors(module=module, shape=shape, count=count, size_bytes=size_bytes, **{**fields, **changes})


def prediction(**changes: Any) -> Prediction:
    """A training step of 32 blocks on an H100: 87 GiB at its peak, most of it activations."""
    at_peak = [
        part("activations", "blocks.*.attention", "aten::_softmax", 32 * GIB, 32, "model.py:42"),
        part("optimizer state", "blocks.*.attention.q", "", 24 * GIB, 64),
        part("parameters", "blocks.*.attention.q", "", 12 * GIB, 32),
        part("gradients", "blocks.*.attention.q", "aten::mm", 12 * GIB, 32, "model.py:41"),
        part("temporaries", "", "aten::cat", 7 * GIB, 2, "train.py:12"),
    ]
    products: dict[str, Any] = {"flops": 32 * 10**12, "roofline_ns": 0.4e9, "line": "model.py:41"}
    twice: dict[str, Any] = {**products, "flops": 64 * 10**12, "roofline_ns": 0.8e9}
    costs = [
        cost("blocks.*.attention.q", "aten::mm", **products),
        cost("blocks.*.attention", "aten::_softmax", roofline_ns=0.2e9, line="model.py:42"),
        cost("blocks.*.attention.q", "aten::mm", 64, **twice, phase="backward"),
        cost("", "aten::_foreach_add_", 1, roofline_ns=0.2e9 / 32, phase="optimizer", line="train.py:30"),
    ]
    fields: dict[str, Any] = {
        "gpu": "h100",
        "torch": "2.13.0",
        "at_peak": at_peak,
        "costs": costs,
        "saved": [saved("blocks.*.attention", [4, 32, 1024, 1024], 32 * GIB)],
        "parameters": 3_410_000_000,
        "layers": {"blocks": 32},
        "bound_ns": 1.2e9,
        "roofline_ns": 1.4e9,
        "launches": 140,
    }
    fields |= changes
    parts: list[PeakPart] = fields["at_peak"]
    composition: dict[str, int] = {}
    for one in parts:
        composition[one.category] = composition.get(one.category, 0) + one.size_bytes
    summed = {"peak_bytes": sum(composition.values()), "held_bytes": 36 * GIB, "composition": composition}
    return Prediction(**{**summed, **fields})


def grown(**changes: Any) -> Prediction:
    """The same with a tensor more in each block, and a product more."""
    usual = prediction()
    return prediction(
        at_peak=[*usual.at_peak, part("temporaries", "blocks.*", "aten::mul", 5 * GIB // 4, 32, "model.py:45")],
        costs=[*usual.costs, cost("blocks.*.attention.q", "aten::bmm", flops=2 * 10**12)],
        **changes,
    )


def fit(**changes: Any) -> Fit:
    """An H100 that is too small, by a little."""
    fields: dict[str, Any] = {
        "room_bytes": 79 * GIB,
        "fits": False,
        "fits_on": ["h200", "b200"],
        "rooms": {"l4": 21 * GIB, "a100-80gb": 78 * GIB, "h100": 79 * GIB, "h200": 139 * GIB, "b200": 177 * GIB},
        "largest": {"batch_size": 3, "context_length": 896},
        "remedies": {"checkpointing": 61 * GIB, "bf16": 80 * GIB},
    }
    return Fit(**{**fields, **changes})


def predicted_baseline(of: Prediction | None = None, **changes: Any) -> PredictedBaseline:
    """What is stored of a prediction."""
    return baseline_of(of or prediction(), **{"recorded": "2026-11-21", **changes})


def predicted_result(
    now: Prediction | None = None,
    before: PredictedBaseline | None = None,
    case: str = "t.py::test_step[2.7B-1024-fp32]",
    policy: Policy | None = None,
    **changes: Any,
) -> Result:
    """A predicted case as it was judged; new unless there is a baseline."""
    now = now or prediction()
    judgement = judge_predicted(now, before, policy or Policy())
    fields: dict[str, Any] = {"judgement": judgement, "outcome": PredictedCase(now=now, before=before)}
    return Result(case=case, **{**fields, **changes})
