"""Judgements of times, counts and memory against a baseline or another version. Pure functions."""
