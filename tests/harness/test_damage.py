"""Damaged files: refused by name with the remedy, or harmless; no traceback, and no gate that is silently gone."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perflab.base.data import changed
from perflab.base.errors import BaselineError, DocumentError
from perflab.cli import main
from perflab.compiled.judge import judge_compiled
from perflab.compiled.store import KernelStore
from perflab.judging.judge import judge
from perflab.measured.baselines import Baselines, ExactStore, split
from perflab.predicted.judge.judge import baseline_of, judge_predicted
from perflab.predicted.store import PredictedStore
from perflab.report.summary import summary
from perflab.results.compiled import CompiledCase, case_of
from perflab.results.documents import read_document, write_document
from perflab.results.measured import Accepted, Anchor
from perflab.results.measurement import Evidence, Quote
from perflab.results.predicted import DryRun
from perflab.results.records import Judgement, Policy, Shortage, Verdict
from perflab.results.result import Document, Result
from perflab.store.times import BaselineStore
from tests.attack import SEED, changed_somewhere, damaged, times
from tests.harness.make import (
    CASE,
    baseline,
    document,
    entry,
    environment,
    kernel,
    measurement,
    memory,
    predicted_baseline,
    predicted_result,
    prediction,
    quiet,
    record,
    replicate,
    result,
)

HERE = environment()
NOW = record(replicate(peak_bytes=2**20, counts={"operators": 5}))
FULL = entry(
    quiet(
        1e8, peak_bytes=2**20, counts={"operators": 4, "allocations": 3}, phases_ns={"forward": 5e7, "backward": 5e7}
    ),
    parameters={"size": "small"},
    anchor=Anchor(recorded="2025-01-01", replicates=quiet(1e6), steps=3, commit="abc"),
    accepted=[Accepted(date="2025-01-04", latency_ratio=1.2, reason="meant")],
)
DRY = prediction(dry_run=DryRun(asked_bytes=5, kernels={"gemm": 2}))
Read = Callable[[Path], list[Result]]


def _measured(path: Path) -> list[Result]:
    found = Baselines(path.parent.parent, path.parent / "own").of(CASE, HERE)
    for store in (BaselineStore(path.parent.parent), ExactStore(path.parent.parent)):
        for other in path.parent.parent.glob("*/*.json"):
            if other.parent.name.startswith("exact-") == isinstance(store, ExactStore):
                store.load(other)
    return [result(outcome=NOW, judgement=judge(NOW, found, Policy()))]


def _predicted(path: Path) -> list[Result]:
    before = PredictedStore(path.parent.parent).baseline("h100", CASE)
    return [predicted_result(prediction(), before)] if judge_predicted(prediction(), before, Policy()) else []


def _compiled(path: Path) -> list[Result]:
    before = KernelStore(path.parent.parent).baseline(kernel())
    compiled = CompiledCase(now=kernel(), before=before.resources if before is not None else None)
    return [Result(case="k", judgement=judge_compiled(kernel(), before), outcome=compiled)]


def _saved(folder: Path) -> tuple[Path, Path]:
    both = split(FULL)
    assert both.exact is not None
    assert both.times is not None
    (own,) = BaselineStore(folder).save({CASE: both.times})
    (exact,) = ExactStore(folder).put({CASE: (changed(both.exact, accepted=FULL.accepted),)})
    return own, exact


KINDS: dict[str, tuple[Callable[[Path], Path], Read]] = {
    "times": (lambda folder: _saved(folder)[0], _measured),
    "exact": (lambda folder: _saved(folder)[1], _measured),
    "predicted": (lambda folder: PredictedStore(folder).save("h100", {CASE: predicted_baseline()})[0], _predicted),
    "dry run": (
        lambda folder: PredictedStore(folder).save(DRY.place, {CASE: baseline_of(DRY, recorded="2025-11-20")})[0],
        lambda path: [predicted_result(DRY, PredictedStore(path.parent.parent).baseline(DRY.place, CASE))],
    ),
    "kernels": (
        lambda folder: KernelStore(folder).save("kernels:EXAMPLES", "3.9.0", {case_of("attend", 90): baseline()}),
        _compiled,
    ),
}


@pytest.fixture(params=KINDS)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Read]:
    """A baseline file of each kind, and what judges a case by it."""
    write, read = KINDS[request.param]
    return write(tmp_path / "baselines"), read


def refusal(read: Read, path: Path) -> str:
    with pytest.raises(BaselineError) as caught:
        read(path)
    said = str(caught.value)
    assert str(path) in said
    assert "\n  -> " in said
    return said


# --- anything ----------------------------------------------------------------------------------------------------


def test_a_damaged_baseline_is_refused_by_name_or_judged_by(stored: tuple[Path, Read]) -> None:
    path, read = stored
    raw = path.read_bytes()
    how = random.Random(SEED)
    refused = 0
    for number in range(times(40, 250)):
        path.write_bytes(_attacked(raw, how, number))
        try:
            results = read(path)
        except BaselineError:
            refusal(read, path)
            refused += 1
        else:
            assert "\n".join(line.text for line in summary(document(*results)))
    assert refused > times(10, 60)


def _attacked(raw: bytes, how: random.Random, number: int) -> bytes:
    if number % 2:
        return damaged(raw, how)
    tree = json.loads(raw)
    changed_somewhere(tree, how)
    return json.dumps(tree, indent=1).encode()


def run_of_everything() -> Document:
    """A run in which each kind of result stands."""
    samples = measurement(
        [10**6] * 5,
        repetitions=2,
        phases_ns={"forward": [10] * 5, "backward": [20] * 5},
        memory=memory(2**20),
        evidence=Evidence(span_ns=10**9, load_average=1.5),
        counts={"operators": 4},
    )
    whole = record(
        NOW.summary,
        parameters={"impl": "a", "size": 3},
        measurement=samples,
        work={"flops": 1e9, "tokens": 512.0},
        matmul_flops_per_second=1e10,
        quotes=[Quote(source="H100", ns=5.0, phases_ns={"forward": 2.0})],
        facts={"loss": 3.2, "note": "x", "size_bytes": 2**30},
    )
    judged = judge(whole, split(entry(quiet(5e7, peak_bytes=2**18, counts={"operators": 2}))), Policy())
    ones = [
        result(
            f"t.py::test_a[{name}-3]", outcome=changed(whole, parameters={"impl": name, "size": 3}), judgement=judged
        )
        for name in ("one", "two")
    ]
    short = Judgement(
        verdict=Verdict.SKIPPED, reasons=["no room"], short_of=[Shortage(of="--perf-budget", needed=40, given=20)]
    )
    in_study = {"study": "switches", "versus": "impl=one", "columns": ["mean", "tokens/s", "loss", "quoted", "MFU"]}
    return document(
        *(changed(one, side_by_side="impl", policy=Policy()) for one in ones),
        *(changed(one, case=f"{one.case}s", **in_study) for one in ones),
        result("t.py::test_b", Verdict.REGRESSED, failure="b is slower\nmuch"),
        result("t.py::test_c", judgement=short),
        predicted_result(prediction(notes=["extrapolated"]), predicted_baseline(), failure="more"),
        Result(case="k", judgement=Judgement(verdict=Verdict.OK), outcome=CompiledCase(now=kernel())),
        exitstatus=1,
        command="pytest -m perf",
        preface=["against main"],
        collected=["t.py::test_a[one-3]"],
        findings={"switches": ["one is faster"]},
        other_failures=["t.py::test_plain"],
    )


def test_a_damaged_results_file_is_refused_by_name_or_shown_and_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "perf.json"
    write_document(run_of_everything(), path)
    assert _shown(path, capsys) == [0, 0, 0, 1]
    raw = path.read_bytes()
    how = random.Random(SEED)
    endings = []
    for number in range(times(60, 1000)):
        path.write_bytes(_attacked(raw, how, number))
        endings += _shown(path, capsys)
    assert set(endings) <= {0, 1, 2}
    assert endings.count(2) > len(endings) / 4
    assert endings.count(0) > len(endings) / 10


def _shown(path: Path, capsys: pytest.CaptureFixture[str]) -> list[int]:
    """Exit statuses of all that takes a results file; none may end in a traceback, or in what is no JSON."""
    endings = []
    for arguments in (["report"], ["report", "--format=markdown"], ["report", "--format=json"], ["merge"]):
        endings.append(main([arguments[0], str(path), *arguments[1:]]))
        said = capsys.readouterr()
        if endings[-1] == 2:
            assert str(path) in said.err
            assert "\n  -> " in said.err
        elif "--format=json" in arguments:
            json.loads(said.out, parse_constant=pytest.fail)
    return endings


# --- what was accepted once --------------------------------------------------------------------------------------


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    found, many = re.subn(old, new, text, count=1)
    assert many == 1, text
    path.write_text(found, encoding="utf-8")


@pytest.mark.parametrize(
    ("kind", "old", "new", "said"),
    [
        ("times", r'"replicates": \[[^]]*\]\n    }', '"replicates": []\n    }', "neither replicates nor out_of_memory"),
        ("times", r'("anchor": \{.*"replicates": )\[[^]]*\]', r"\1[]", "its anchor has no replicates"),
        ("times", r'"samples": 30', '"samples": -30', r"samples"),
        ("times", r'"noise": 0.002', '"noise": -1', r"noise"),
        ("times", r'"fastest_ns": [0-9.]+', '"fastest_ns": 1e12', "fastest_ns is above its median_ns"),
        ("times", r'"std_ns": [0-9.]+', '"std_ns": 1e200', "is out of range"),
        ("exact", r', "peak_bytes": \[1048576\]', "", "missing required field `peak_bytes`"),
        ("exact", r'"peak_bytes": \[1048576\]', '"peak_bytes": null', "peak_bytes"),
        ("exact", r'"peak_bytes": \[1048576\]', '"peak_bytes": [-1048576]', "peak_bytes"),
        ("exact", r'"peak_bytes": \[1048576\]', f'"peak_bytes": [{"7" * 400}]', "of 400 digits"),
        ("exact", r'"peak_bytes": \[1048576\]', f'"peak_bytes": [{"7" * 5000}]', "too long"),
        ("exact", r'"counts": \{[^}]*\}, ', "", "missing required field `counts`"),
        ("exact", r'"operators": 4', '"operators": -4', "counts"),
        ("exact", r'"operators": 4', '"operators": 4, "operators": 9', "the key 'operators' occurs twice"),
        ("exact", r'"needs": \{\n.*\n', '"needs": {\n', "its needs are empty"),
        ("predicted", r'"peak_bytes": \d+', '"peak_bytes": -1', "peak_bytes"),
        ("predicted", r'"held_bytes": \d+', f'"held_bytes": {"9" * 400}', "of 400 digits"),
        ("dry run", r'"real": \{[^}]*\}, ?', "", "it has no asked, "),
        ("dry run", r'"real": \{[^}]*\}', '"real": {}', "it has no asked, "),
        ("kernels", r'"registers": \d+', '"registers": -1', "registers"),
        ("kernels", r'"registers": \d+', '"registers": 1, "registers": 2', "the key 'registers' occurs twice"),
    ],
)  # fmt: skip
def test_a_baseline_that_lost_what_it_gates_is_refused(
    tmp_path: Path, kind: str, old: str, new: str, said: str
) -> None:
    write, read = KINDS[kind]
    path = write(tmp_path / "baselines")
    assert read(path)
    edit(path, old, new)
    assert said in refusal(read, path)


NOT_GATED = {
    "exact": {"accepted", "memory_anchor", "commit"},
    "predicted": {"layers", "roofline_ns", "parameters", "commit", "reason"},
    "dry run": {"layers", "roofline_ns", "parameters", "kernels", "commit", "reason"},
    "kernels": {"tensor_columns"},
}
"""What a stored case may lack: it is shown, or says where the rest comes from."""


@pytest.mark.parametrize("kind", NOT_GATED)
def test_no_field_that_is_gated_may_be_missing(tmp_path: Path, kind: str) -> None:
    write, read = KINDS[kind]
    path = write(tmp_path / "baselines")
    tree = json.loads(path.read_text(encoding="utf-8"))
    (case,) = tree["cases"].values()
    holder = next(iter(case["needs"].values())) if kind == "exact" else case
    gated = [(holder, field) for field in holder if field not in NOT_GATED[kind]]
    if kind == "dry run":
        gated += [(case["real"], quantity) for quantity in case["real"]]
    assert len(gated) > 2
    for fields, field in gated:
        value = fields.pop(field)
        path.write_text(json.dumps(tree), encoding="utf-8")
        said = refusal(read, path)
        assert field in said or "its save or its target" in said
        fields[field] = value
    path.write_text(json.dumps(tree), encoding="utf-8")
    assert read(path)


def test_a_case_that_stands_twice_in_a_baseline_is_refused(stored: tuple[Path, Read]) -> None:
    path, read = stored
    tree = json.loads(path.read_text(encoding="utf-8"))
    (name,) = tree["cases"]
    again = f'"cases": {{ {json.dumps(name)}: {json.dumps(tree["cases"][name])},'
    path.write_text(path.read_text(encoding="utf-8").replace('"cases": {', again, 1), encoding="utf-8")
    assert f"the key {name!r} occurs twice in one object" in refusal(read, path)


@pytest.mark.parametrize("digits", [400, 4301, 10_000])
@pytest.mark.parametrize("field", ["exitstatus", "total_budget_s"])
def test_a_number_that_is_too_long_is_refused_in_a_results_file(tmp_path: Path, digits: int, field: str) -> None:
    path = tmp_path / "perf.json"
    write_document(document(result()), path)
    whole: dict[str, Any] = json.loads(path.read_bytes())
    path.write_text(json.dumps({**whole, field: "N"}).replace('"N"', "9" * digits))
    with pytest.raises(DocumentError, match=r"perf.json is (damaged|not a file of perflab's results)"):
        read_document(path)


def test_a_rate_that_no_number_holds_is_null_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = record(facts={"loss": -1e308, "rate_ratio": 1e308}, work={"tokens": 1e99})
    path = tmp_path / "perf.json"
    write_document(document(result(outcome=odd, study="s", columns=["loss", "tokens/s"])), path)
    assert main(["report", str(path), "--format=json"]) in (0, 2)
    json.loads(capsys.readouterr().out or "0", parse_constant=pytest.fail)


def test_a_kernel_baseline_names_no_file_outside_of_its_directory(tmp_path: Path) -> None:
    path = KernelStore(tmp_path / "in").path_for("../../../out:EXAMPLES", "../3")
    assert path.resolve().is_relative_to((tmp_path / "in").resolve())
    assert path.parent.parent == tmp_path / "in"
