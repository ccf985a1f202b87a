"""Runs measured cases in pytest: measuring, re-checking suspects, saving."""
