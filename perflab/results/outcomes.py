"""The outcomes of cases: the union of the tiers' records. A new tier adds its record to this union."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from perflab.results.compared import ComparedCase
from perflab.results.compiled import CompiledCase
from perflab.results.measured import MeasuredCase
from perflab.results.predicted import PredictedCase

if TYPE_CHECKING:
    from perflab.results.records import TierRecord

Outcome = MeasuredCase | ComparedCase | PredictedCase | CompiledCase
"""The record of a case, by tier in the order of tables. A tier's name is its record's tag and its folder's name."""


def names() -> list[str]:
    """Return every tier's name, in the order of tables."""
    return [tag_of(record) for record in get_args(Outcome)]


def name_of(outcome: Outcome) -> str:
    """Return the name of an outcome's tier."""
    return tag_of(type(outcome))


def tag_of(record: type[TierRecord]) -> str:
    """Return the name of the tier whose cases have records of this type."""
    tag = record.__struct_config__.tag
    assert isinstance(tag, str)
    return tag
