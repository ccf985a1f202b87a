"""The record of the compared tier: base and head measured interleaved; what the pairs said is its ``paired``."""

from __future__ import annotations

from typing import ClassVar

from perflab.measured.records import MeasuredCase


class ComparedCase(MeasuredCase, frozen=True, tag="compared"):
    """What one case learned in an A/B comparison: the head's measurement, and the ratios of all pairs."""

    compares: ClassVar[bool] = True
