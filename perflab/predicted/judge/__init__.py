"""A prediction against its baseline: totals decide, rows tell what grew. Pure."""
