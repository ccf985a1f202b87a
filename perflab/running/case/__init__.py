"""Runs cases of any tier: the ``perf`` fixture, locks, budgets, watchdog."""
