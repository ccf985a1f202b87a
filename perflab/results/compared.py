"""The record of the compared tier: base and head measured interleaved; ``paired`` holds the results of the pairs."""

from __future__ import annotations

from typing import ClassVar

from perflab.results.measured import MeasuredCase


class ComparedCase(MeasuredCase, frozen=True, tag="compared"):
    """The record of one case in an A/B comparison: the head's measurement, and the ratios of all pairs."""

    compares: ClassVar[bool] = True
