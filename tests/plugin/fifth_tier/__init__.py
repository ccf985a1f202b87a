"""A small tier, which ``test_fifth_tier.py`` adds to a copy of perflab by the edits that DESIGN.md lists."""
