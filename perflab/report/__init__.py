"""Turns records into text for people. Pure functions that import neither pytest nor torch."""
