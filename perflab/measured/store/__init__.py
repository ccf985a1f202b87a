"""Stored baselines of measured cases: exact quantities for all machines, times by machine."""
