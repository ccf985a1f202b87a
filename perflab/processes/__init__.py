"""Processes that perflab starts: they end by themselves, when they hang, or with their parent."""
