"""Stored baselines of measured cases: exact quantities for all machines, times for each machine."""
