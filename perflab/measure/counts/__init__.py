"""Counts of a call: operators, allocations, launches, instructions."""
