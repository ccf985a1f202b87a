"""What the study of where the time goes says of profiles: of changes that stand out alone, and in 80 columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab import Profile, ProfileRow, Result
from perflab.results.measurement import Measurement
from tests.harness.make import MS, record, replicate, result
from tests.perf.studies.profile_findings import profile_findings
from tests.perf.studies.test_profile import WAYS

pytestmark = pytest.mark.correctness


def row(category: str, ms: float, operator: str = "", shapes: str = "8x8 float32", noise: float = 0.01) -> ProfileRow:
    return ProfileRow(
        category=category, operator=operator, shapes=shapes, instances=4, time_ns=ms * MS, spread_ns=noise * ms * MS
    )


def findings(profiles: Mapping[str, Sequence[ProfileRow]]) -> list[str]:
    """Of inference in several ways, whose rows explain all of the time."""
    return profile_findings(
        [_case(how, _profile(rows, sum(one.time_ns for one in rows))) for how, rows in profiles.items()]
    )


def _profile(rows: Sequence[ProfileRow], whole_ns: float) -> Profile:
    return Profile(device="cpu", calls=6, timer_ns=whole_ns, profiled_ns=whole_ns, rows=list(rows))


def _case(how: str, profile: Profile) -> Result:
    measured = Measurement(samples_ns=[10], repetitions=1, warmup_calls=1, settled=True, clock="host", profile=profile)
    node = f"test_profile.py::test_profile[{how}-inference]"
    own = {"mode": "inference", "how": how}
    return result(node, outcome=record(replicate(profile.timer_ns), case=node, parameters=own, measurement=measured))


def changes(found: Sequence[str]) -> list[str]:
    return [line.partition(": ")[2] for line in found if line.startswith("inference, written out -> SDPA: ")]


def test_a_change_names_what_saves_most_and_a_cost_if_there_is_one(snapshot: SnapshotAssertion) -> None:
    before = [row("attention", 5, "aten::bmm"), row("copies", 2, "aten::copy_")]
    saving = [row("attention", 4, "aten::_flash"), row("copies", 1, "aten::to")]
    assert changes(findings({"written out": before, "SDPA": saving})) == ["-2.00 ms; attention -1.00 ms"]
    both = [row("attention", 2, "aten::_flash"), row("copies", 3, "aten::to")]
    assert changes(findings({"written out": before, "SDPA": both})) == snapshot


def test_unchanged_work_and_what_calls_differ_by_are_no_change(snapshot: SnapshotAssertion) -> None:
    before = [row("products forward", 5, "aten::mm"), row("copies", 2, "aten::copy_", noise=0.2), row("python", 1)]
    now = [row("products forward", 7, "aten::mm"), row("copies", 3, "aten::to", noise=0.2), row("python", 1.05)]
    assert changes(findings({"written out": before, "SDPA": now})) == snapshot
    now[-1] = row("python", 3)
    assert changes(findings({"written out": before, "SDPA": now})) == ["+5.00 ms; python +2.00 ms"]


def test_the_table_of_all_ways_fits_into_eighty_columns_and_names_each_above_its_numbers() -> None:
    rows = [row("element-wise and norms", 812.1, "aten::mul"), row("products backward", 99.99, "aten::mm")]
    found = findings({how.name: rows for how in WAYS})
    at = next(number for number, line in enumerate(found) if line.startswith("  element-wise and norms "))
    table = found[at - 3 : at + 4]
    assert max(map(len, table)) <= 76  # a report indents them
    ends = [found_at.end() for found_at in re.finditer("812 ms", found[at])]
    heads = [" ".join(line[end - 9 : end].strip() for line in table[:3]).strip() for end in ends]
    assert heads == [how.name for how in WAYS]


def test_no_bar_is_longer_than_a_line_where_rows_come_to_more_than_the_call() -> None:
    profile = _profile([row("attention", 50, "aten::bmm"), row("copies", 50, "aten::copy_")], 30 * MS)
    (bar,) = (line for line in profile_findings([_case("SDPA", profile)]) if line.startswith("  SDPA "))
    assert bar == f"  SDPA {20 * '█'}{20 * '▓'} 30.0 ms"


def test_softmax_says_what_its_flops_are_counted_by() -> None:
    rows = [row("attention", 1, "aten::_softmax", "16x128x128 float32")]
    rows.append(ProfileRow(category="attention", operator="aten::bmm", instances=2, time_ns=2 * MS, flops=10**8))
    (line,) = (line for line in findings({"written out": rows}) if "softmax" in line)
    assert line.endswith("and about 5.24 MFLOP beside 100 MFLOP (0.052), counting 5 FLOPs for each number")
