"""Judges a prediction against its baseline: totals decide the verdict, rows explain the growth. Pure."""
