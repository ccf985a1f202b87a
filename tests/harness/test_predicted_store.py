"""Predicted baselines: what stands in the files, and what is never done to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perflab.base.data import Parameters, changed
from perflab.base.errors import BaselineError
from perflab.predicted.store import PredictedStore, stored
from perflab.store.case_files import join_baselines
from perflab.store.stale import Collection, find_missing
from perflab.store.times import BaselineStore
from perflab.tiers.interface import by_folder
from tests.harness.make import CASE, closest, cost, entry, environment, part, predicted_baseline, prediction, saved

OTHER = "tests/perf/test_transformer.py::test_forward[a::b]"
FILE = "predicted-h100/tests.perf.test_transformer.json"
NAME = "test_step[small-128-fp32]"


def test_what_is_saved_is_what_is_found(tmp_path: Path) -> None:
    parameters: Parameters = {"size": "small", "dropout": 0.5}
    kept = predicted_baseline(commit="abc", reason="longer context", parameters=parameters)
    kept = changed(kept, roofline_ns=1.4e9 / 3)
    assert PredictedStore(tmp_path).save("h100", {CASE: kept}) == [tmp_path / FILE]
    store = PredictedStore(tmp_path)
    assert store.baseline("h100", CASE) == kept
    assert store.baseline("h100", OTHER) is None
    assert store.baseline("a100-40gb", CASE) is None
    assert store.paths() == [tmp_path / FILE]


def test_a_file_begins_with_its_schema_and_holds_a_row_a_line_in_order(tmp_path: Path) -> None:
    of = prediction(
        at_peak=[part("parameters", "head", "", 8, 2), part("activations", "blocks.*", "aten::mul", 16, 4, "m.py:4")],
        costs=[cost("head", "aten::mm", 1, bytes_moved=3, flops=7), cost("blocks.*", "my::op", 2, bytes_moved=5)],
        saved=[saved("blocks.*", [4, 2], 16, 4)],
    )
    path = tmp_path / FILE
    PredictedStore(tmp_path).save(
        "h100", {CASE: predicted_baseline(of, parameters={"n": 1}), OTHER: predicted_baseline()}
    )
    text = path.read_text()
    assert text.startswith(
        '{\n  "schema": 1,\n  "gpu": "h100",\n  "rows": {\n    "at_peak": "category, module, operator,'
    )
    assert list(json.loads(text)["cases"]) == ["test_forward[a::b]", NAME]
    assert (
        text[text.index(f'    "{NAME}"') :]
        == """\
    "test_step[small-128-fp32]": {
      "held_bytes": 38654705664,
      "layers": {"blocks": 32},
      "parameters": {"n": 1},
      "peak_bytes": 24,
      "recorded": "2026-11-21",
      "roofline_ns": 1400000000.0,
      "saved_bytes": 16,
      "torch": "2.13.0",
      "at_peak": [
  ["activations","blocks.*","aten::mul",16,4],
  ["parameters","head","",8,2]
      ],
      "costs": [
  ["forward","blocks.*","my::op",2,0,5],
  ["forward","head","aten::mm",1,7,3]
      ],
      "saved": [
  ["blocks.*","aten::_softmax",[4,2],"float32",4,16]
      ]
    }
  }
}
"""
    )


def test_what_did_not_change_stays_as_it_was_saved_unless_a_reason_is_given(tmp_path: Path) -> None:
    store, path = PredictedStore(tmp_path), tmp_path / FILE
    parameters = {"limit": float("inf"), "name": "\udcff"}
    store.save("h100", {CASE: predicted_baseline(commit="first", parameters=parameters), OTHER: predicted_baseline()})
    before = path.read_bytes()
    store.save("h100", {CASE: predicted_baseline(recorded="2027-01-01", commit="later", parameters=parameters)})
    assert path.read_bytes() == before
    store.save("h100", {CASE: predicted_baseline(prediction(peak_bytes=5), recorded="2027-01-01", commit="later")})
    found = PredictedStore(tmp_path).baseline("h100", CASE)
    assert found is not None
    assert (found.peak_bytes, found.commit) == (5, "later")
    kept = store.baseline("h100", OTHER)
    assert kept is not None
    assert kept.recorded == "2026-11-21", "others stay"
    store.save("h100", {OTHER: predicted_baseline(recorded="2027-01-02", reason="as meant")})
    told = store.baseline("h100", OTHER)
    assert told is not None
    assert (told.recorded, told.reason) == ("2027-01-02", "as meant")


def test_files_of_large_models_stay_small(tmp_path: Path) -> None:
    """24 cases of a training step as large ones are: 300 rows of costs, 60 at the peak, 40 of what is saved."""
    modules = [f"blocks.*.{name}" for name in ("attention.query", "attention", "feed_forward.down", "attention_norm")]
    operators = [
        f"aten::{name}" for name in ("mm", "_softmax", "mul", "_foreach_addcdiv_", "add", "bmm", "where", "sum")
    ]
    where = [(module, operator) for module in modules for operator in operators]
    of = prediction(
        at_peak=[part("activations", f"{m}.{i}", o, 17_179_869_184, 32) for i in range(2) for m, o in where][:60],
        costs=[
            cost(f"{m}.{i}", o, 96, flops=2_199_023_255_552 * (i % 2), bytes_moved=8_589_934_592, phase=phase)
            for i in range(4)
            for m, o in where
            for phase in ("forward", "backward", "optimizer")
        ][:300],
        saved=[saved(f"{m}.{i}", [4, 32, 1024, 1024], 17_179_869_184) for i in range(2) for m, _ in where][:40],
    )
    cases = {f"tests/perf/test_transformer.py::test_step[2.7B-{i}-fp32]": predicted_baseline(of) for i in range(24)}
    (path,) = PredictedStore(tmp_path).save("h100", cases)
    assert path.stat().st_size < 720_000


LINE = ",32,32000000000000,32768]"
"""How a row of costs ends: calls, FLOPs, bytes."""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"schema": 1', '"schema": 2', "was written by a newer perflab\n  -> upgrade perflab"),
        ('"gpu": "h100"', '"gpu": "l4"', "is for l4, but is in predicted-h100/\n  -> move it to predicted-l4/, or"),
        ('"cases": {', '"cases": {,', "is damaged at line 9, column 13: "),
        ('"cases": {', '"cases": {}, "more": {', "unknown field `more`"),
        (f'"{NAME}": {{', f'"{NAME}": {{"more": 1,', f"{NAME}: Object contains unknown field `more`"),
        ('"peak_bytes": 93', '"peak": 93', f"{NAME}: Object contains unknown field `peak`"),
        ('["gradients"', '["gradients", 1', f"{NAME}: Expected `str`, got `int` - at `$.at_peak[1][1]`"),
        (LINE, ",32,32000000000000]", f"{NAME}: Expected `array` of length 6 - at `$.costs[2]`"),
        (LINE, ",32,32000000000000,32768,1]", f"{NAME}: Expected `array` of length 6 - at `$.costs[2]`"),
        (LINE, ',32,32000000000000,"32768"]', f"{NAME}: Expected `int`, got `str` - at `$.costs[2][5]`"),
        (LINE, ",32,32000000000000,NaN]", "NaN is not a number"),
    ],
)
def test_a_damaged_or_foreign_file_is_named_with_place_and_remedy_and_left_alone(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    PredictedStore(tmp_path).save("h100", {CASE: predicted_baseline()})
    path = tmp_path / FILE
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    store = PredictedStore(tmp_path)
    for touch in (lambda: store.check("h100", [CASE]), lambda: store.save("h100", {OTHER: predicted_baseline()})):
        with pytest.raises(BaselineError) as error:
            touch()
        assert str(path) in str(error.value)
        assert said in str(error.value)
        assert "\n  -> " in str(error.value)
    assert path.read_text() == text.replace(old, new, 1)
    PredictedStore(tmp_path).check("a100-40gb", [CASE])


def test_a_directory_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BaselineError, match=r"cannot write baselines to .*file/baselines: Not a directory"):
        PredictedStore(tmp_path / "file" / "baselines").save("h100", {CASE: predicted_baseline()})


def test_what_is_removed_is_gone_and_a_file_with_nothing_left_too(tmp_path: Path) -> None:
    store, path = PredictedStore(tmp_path), tmp_path / FILE
    store.save("h100", {CASE: predicted_baseline(), OTHER: predicted_baseline()})
    assert store.remove({path: [NAME, "test_unknown"]}) == {path: [NAME]}
    assert (store.baseline("h100", CASE), store.baseline("h100", OTHER)) == (None, predicted_baseline())
    store.remove({path: ["test_forward[a::b]"]})
    assert not path.parent.exists()


def test_predicted_and_measured_baselines_of_one_case_never_meet(tmp_path: Path) -> None:
    PredictedStore(tmp_path).save("h100", {CASE: predicted_baseline()})
    store = BaselineStore(tmp_path)
    assert closest(store, CASE, environment()) is None, "and not an error either"
    store.save({CASE: entry()})
    assert closest(store, CASE, environment()) == entry()
    assert PredictedStore(tmp_path).baseline("h100", CASE) == predicted_baseline()


def test_shards_are_joined_each_gpu_apart_and_the_latest_counts(tmp_path: Path) -> None:
    late = predicted_baseline(prediction(peak_bytes=7), recorded="2027-01-01")
    PredictedStore(tmp_path / "one").save("h100", {CASE: predicted_baseline(), OTHER: predicted_baseline()})
    PredictedStore(tmp_path / "two").save("h100", {CASE: late})
    PredictedStore(tmp_path / "two").save("l4", {CASE: predicted_baseline()})
    BaselineStore(tmp_path / "two").save({CASE: entry()})
    entries, _ = join_baselines([tmp_path / "two", tmp_path / "one"], tmp_path / "all", by_folder())
    assert entries == 4
    store = PredictedStore(tmp_path / "all")
    assert [store.baseline(gpu, case) for gpu, case in (("h100", CASE), ("h100", OTHER), ("l4", CASE))] == [
        late,
        predicted_baseline(),
        predicted_baseline(),
    ]
    assert closest(BaselineStore(tmp_path / "all"), CASE, environment()) == entry()


def test_a_case_that_is_gone_is_stale_on_whatever_machine(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text("def test_n(perf, n): pass\n")
    cases = [f"test_x.py::{name}" for name in ("test_n[1]", "test_n[2]", "test_gone")]
    PredictedStore(tmp_path / "baselines").save("h100", dict.fromkeys(cases, predicted_baseline()))
    (file,) = stored(tmp_path / "baselines")
    found = find_missing(
        "test_x", file.entries(), Collection(files={"test_x.py": ["test_n[1]"]}), tmp_path, is_ours=True
    )
    assert found == (["test_gone"], ["test_n[2]"])
