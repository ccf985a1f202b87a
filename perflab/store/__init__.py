"""Baseline files, whatever is in them: named by test module, read with checks, written whole, joined, pruned."""
