"""docs/memory-study.md says what predictions and recordings of the lab's models say today."""

from __future__ import annotations

from pathlib import Path

import pytest

from perflab.snapshots.analysis import alive_at, levels, parts_by
from tests.harness.made_snapshots import read
from tests.studies.memory_figures import of_the_stream, peak_cells, residual_bytes
from tests.studies.memory_study import COMMAND
from tests.studies.memory_timelines import CPU, MODELS, PREDICTED, Case, cases, make

PAGE = Path(__file__).parents[2] / "docs" / "memory-study.md"
TINY = [one for one in cases(PREDICTED) if (one.model, one.context_length) == ("tiny", 128)]


def on_the_page(case: Case) -> list[list[str]]:
    """Its rows; the first is the prediction's, the second the measured one's."""
    rows = [line[2:-2].split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0] == case.title]


@pytest.mark.parametrize("case", TINY, ids=str)
def test_the_page_has_the_peak_and_composition_that_are_predicted_today(case: Case, tmp_path: Path) -> None:
    found = read(make(case, tmp_path))
    predicted, _ = on_the_page(case)
    assert predicted == [*peak_cells(case, found), "="], COMMAND


def test_a_measured_forward_has_an_activation_for_each_sum_of_the_residual_stream(tmp_path: Path) -> None:
    stream = of_the_stream(read(make(Case(CPU, "tiny", "forward", 128, "fp32"), tmp_path)), residual_bytes("tiny", 128))
    assert [one.module for one in stream] == ["blocks.0", "blocks.0", "blocks.1", "blocks.1"]


def test_the_page_has_every_case_of_the_study_and_every_recorded_peak_is_the_predicted_one() -> None:
    for case in cases(PREDICTED):
        rows = on_the_page(case)
        assert len(rows) == (2 if case.model in MODELS[CPU] else 1), case
        assert rows[0][-1] == "=", case


def test_categories_add_up_to_the_level_at_every_moment_of_a_prediction(tmp_path: Path) -> None:
    found = read(make(Case(PREDICTED, "tiny", "train_step", 128, "fp32"), tmp_path))
    for moment, level in enumerate(levels(found)):
        parts = parts_by(alive_at(found, moment), lambda one: one.category)
        assert sum(one.size_bytes for one in parts.values()) == level
