"""Whole measurements: a callable alone, one side of a comparison, or two callables in turns."""
