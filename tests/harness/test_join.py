"""Baselines that shards of one update wrote, joined."""

from __future__ import annotations

from pathlib import Path

import pytest

from perflab.base.errors import BaselineError
from perflab.results.measured import Entry
from perflab.store.case_files import join_baselines
from perflab.store.times import BaselineStore
from perflab.tiers.interface import by_folder
from tests.harness.make import CASE, closest, cuda_environment, entry, environment, quiet

OTHER = "tests/perf/test_transformer.py::test_forward[a::b]"
ELSEWHERE = "tests/perf/test_50%.py::TestX::test_y"
OLD, NEW = "2025-11-19", "2025-11-19T08:30:00Z"


def update(median_ns: float, recorded: str = NEW) -> Entry:
    return entry(quiet(median_ns), recorded=recorded)


def test_a_sharded_update_gives_the_files_of_one_update(tmp_path: Path) -> None:
    before = {CASE: update(1e6, OLD), OTHER: update(2e6, OLD)}
    after = {CASE: update(3e6), OTHER: update(4e6), ELSEWHERE: update(5e6)}
    BaselineStore(tmp_path / "whole").save(after)
    for shard, cases in {"one": [CASE], "two": [OTHER, ELSEWHERE]}.items():
        BaselineStore(tmp_path / shard).save(before)  # the checkout
        BaselineStore(tmp_path / shard).save({case: after[case] for case in cases})
    shards = [tmp_path / "one", tmp_path / "two"]
    for number, order in enumerate([shards, shards[::-1]]):
        output = tmp_path / f"output{number}"
        entries, written = join_baselines(order, output, by_folder())
        assert entries == 3
        files = sorted(path.relative_to(output) for path in written)
        assert files == sorted(path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").glob("*/*"))
        assert [(output / file).read_bytes() for file in files] == [
            (tmp_path / "whole" / file).read_bytes() for file in files
        ]


def test_entries_of_each_environment_stay_apart(tmp_path: Path) -> None:
    gpu, cpu = entry(quiet(1e6), environment=cuda_environment()), update(2e6)
    BaselineStore(tmp_path / "gpu").save({CASE: gpu})
    BaselineStore(tmp_path / "cpu").save({CASE: cpu})
    join_baselines([tmp_path / "gpu", tmp_path / "cpu"], tmp_path / "both", by_folder())
    both = BaselineStore(tmp_path / "both")
    assert closest(both, CASE, cuda_environment()) == gpu
    assert closest(both, CASE, environment()) == cpu


def test_times_of_other_versions_and_thread_counts_are_all_joined(tmp_path: Path) -> None:
    """They stand in files of one name."""
    environments = [environment(), environment(python="3.14"), environment(threads=1)]
    saved = [entry(quiet(1e6 * number), environment=one) for number, one in enumerate(environments, 1)]
    for number, one in enumerate(saved):
        BaselineStore(tmp_path / str(number)).save({CASE: one})
    older = entry(quiet(9e6), environment=environments[1], recorded="2020-01-01")
    BaselineStore(tmp_path / "output").save({CASE: older})
    join_baselines([tmp_path / str(number) for number in range(3)], tmp_path / "output", by_folder())
    joined = BaselineStore(tmp_path / "output")
    assert [closest(joined, CASE, one) for one in environments] == saved


def test_what_the_output_holds_takes_part(tmp_path: Path) -> None:
    output = tmp_path / "baselines"
    BaselineStore(output).save({CASE: update(9e6, "2026-01-01"), OTHER: update(1e6, OLD), ELSEWHERE: update(2e6)})
    BaselineStore(tmp_path / "one").save({CASE: update(3e6), OTHER: update(4e6)})
    join_baselines([tmp_path / "one"], output, by_folder())
    joined = BaselineStore(output)
    medians = [
        found.replicates[1].median_ns
        for case in (CASE, OTHER, ELSEWHERE)
        if (found := closest(joined, case, environment()))
    ]
    assert medians == [9e6, 4e6, 2e6]


def test_a_damaged_file_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    BaselineStore(tmp_path / "one").save({CASE: entry()})
    (path,) = BaselineStore(tmp_path / "two").save({CASE: entry()})
    path.write_text('{"schema": 1,')
    with pytest.raises(BaselineError, match=r"two/.*test_transformer.json is damaged at line 1, column 14"):
        join_baselines([tmp_path / "one", tmp_path / "two"], tmp_path / "output", by_folder())
    assert not (tmp_path / "output").exists()


def test_a_directory_that_is_none_or_holds_no_baselines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match=r"missing is not a directory\n  -> name a directory of baselines"):
        join_baselines([tmp_path / "missing"], tmp_path / "output", by_folder())
    (tmp_path / "empty").mkdir()
    with pytest.raises(BaselineError, match="empty holds no baselines"):
        join_baselines([tmp_path / "empty"], tmp_path / "output", by_folder())
    assert not (tmp_path / "output").exists()
