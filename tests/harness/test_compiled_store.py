"""Baselines of compiled kernels: what stands in the files, and what is never done to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perflab.base.errors import BaselineError
from perflab.compiled.store import KernelStore
from perflab.store.case_files import join_baselines
from perflab.store.times import BaselineStore
from perflab.tiers.interface import by_folder
from tests.harness.make import CASE, baseline, entry, kernel, resources

WHERE = "kernels:EXAMPLES"
FILE = "triton-3.9.0/kernels.EXAMPLES.json"


def test_what_is_saved_is_what_is_found(tmp_path: Path) -> None:
    saved = baseline(resources(registers=111), commit="abc", reason="wider tiles")
    assert KernelStore(tmp_path).save(WHERE, "3.9.0", {"attend[sm_90]": saved}) == tmp_path / FILE
    store = KernelStore(tmp_path)
    assert store.baseline(kernel()) == saved
    assert store.baseline(kernel(arch=80)) is None
    assert store.baseline(kernel(registration="other:EXAMPLES")) is None


def test_a_file_holds_a_kernel_a_line_below_what_they_have_in_common(tmp_path: Path) -> None:
    store = KernelStore(tmp_path)
    cases = {"b[sm_90]": baseline(reason="why"), "a[sm_90]": baseline(), "a[sm_100]": baseline()}
    text = store.save(WHERE, "3.9.0", cases).read_text()
    assert text.startswith('{\n  "schema": 3,\n  "registration": "kernels:EXAMPLES",\n  "saves": {\n')
    assert text.endswith("}\n")
    assert [line.split('"')[1] for line in text.splitlines() if '"registers": 100,' in line] == sorted(cases)
    assert text.count('"why"') == 1
    assert text.count('"ptxas"') == 2, "one for each architecture"
    store.save(WHERE, "3.9.0", {"b[sm_90]": baseline(recorded="2027-01-01", commit="later")})
    assert (tmp_path / FILE).read_text() == text, "saving the same again changes nothing"
    store.save(WHERE, "3.9.0", {"b[sm_90]": baseline(resources(registers=90), recorded="2027-01-01")})
    assert "2027-01-01" in (tmp_path / FILE).read_text()


def test_what_differs_in_one_detail_keeps_a_line_of_its_own_in_the_tables(tmp_path: Path) -> None:
    cases = {
        f"{commit}-{ptxas}-{shared}[sm_90]": baseline(
            resources(ptxas=ptxas, shared_limit_bytes=shared), commit=commit, reason=reason
        )
        for commit, reason in (("abc", None), ("abc", "why"), ("def", None))
        for ptxas in ("13.4", "13.5")
        for shared in (1000, 2000)
    }
    path = KernelStore(tmp_path).save(WHERE, "3.9.0", cases)
    assert KernelStore(tmp_path).load(path) == cases


@pytest.mark.parametrize("broken", ["saves", "targets"])
def test_a_kernel_whose_context_is_gone_is_named(tmp_path: Path, broken: str) -> None:
    path = KernelStore(tmp_path).save(WHERE, "3.9.0", {"a[sm_90]": baseline()})
    content = json.loads(path.read_text())
    content[broken] = {}
    path.write_text(json.dumps(content))
    with pytest.raises(
        BaselineError, match=r"is not a perflab kernel baseline file: a\[sm_90\]: its save or its target"
    ):
        KernelStore(tmp_path).load(path)


def test_another_tritons_baseline_is_found_where_there_is_none_of_this_one(tmp_path: Path) -> None:
    store = KernelStore(tmp_path)
    for version, date in (("3.7.0", "2026-01-01"), ("3.8.0", "2026-06-01")):
        store.save(WHERE, version, {"attend[sm_90]": baseline(triton=version, recorded=date)})
    found = store.baseline(kernel())
    assert found is not None
    assert found.triton == "3.8.0", "the latest"


def test_what_is_registered_no_more_is_stale_on_the_architectures_that_were_looked_at(tmp_path: Path) -> None:
    store = KernelStore(tmp_path)
    store.save(WHERE, "3.9.0", {f"{name}[sm_{arch}]": baseline() for name in ("a", "b") for arch in (80, 90)})
    assert store.stale(WHERE, "3.9.0", {90: ["a"]}) == ["b[sm_90]"]
    store.save(WHERE, "3.9.0", {}, stale=["b[sm_90]"])
    assert store.stale(WHERE, "3.9.0", {80: ["a", "b"], 90: ["a"]}) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is damaged at line 1, column 2"),
        (b"\xff", "is damaged: not UTF-8 at byte 0"),
        (b'{"schema": 4}', "was written by a newer perflab"),
        (b'{"schema": 2}', "has schema 2, and perflab reads schema 3 only"),
        (b'{"schema": 3, "environments": {}, "cases": {}}', "is not a perflab kernel baseline file"),
        (
            b'{"schema": 3, "registration": "a:B", "saves": {}, "targets": {}, "cases": {"a": 1}}',
            "is not a perflab kernel baseline file",
        ),
    ],
)
def test_a_damaged_or_foreign_file_is_named_and_left_alone(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / FILE
    path.parent.mkdir()
    path.write_bytes(content)
    for use in (
        lambda store: store.baseline(kernel()),
        lambda store: store.check(WHERE),
        lambda store: store.save(WHERE, "3.9.0", {"attend[sm_90]": baseline()}),
    ):
        with pytest.raises(BaselineError, match=said) as caught:
            use(KernelStore(tmp_path))
        assert str(path) in str(caught.value)
    assert path.read_bytes() == content


def test_shards_are_joined_with_what_was_measured_beside_them(tmp_path: Path) -> None:
    KernelStore(tmp_path / "one").save(WHERE, "3.9.0", {"a[sm_90]": baseline(), "b[sm_90]": baseline()})
    newer = baseline(resources(registers=1), recorded="2026-11-22")
    KernelStore(tmp_path / "two").save(WHERE, "3.9.0", {"b[sm_90]": newer})
    BaselineStore(tmp_path / "two").save({CASE: entry()})
    entries, files = join_baselines([tmp_path / "one", tmp_path / "two"], tmp_path / "out", by_folder())
    assert (entries, len(files)) == (3, 2)
    found = KernelStore(tmp_path / "out").load(tmp_path / "out" / FILE)
    assert found == {"a[sm_90]": baseline(), "b[sm_90]": newer}
