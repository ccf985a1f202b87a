"""Baseline files of any content: named by test module, read with checks, written whole, joined, pruned."""
