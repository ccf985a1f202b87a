"""Stored predictions: ``predicted-<gpu>/<test module>.json``."""
