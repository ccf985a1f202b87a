"""Computes a verdict from a record and its baseline, in pure functions that need neither torch nor pytest."""
