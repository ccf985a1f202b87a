"""What runs a case, whatever its tier: the ``perf`` fixture, locks, budgets, watchdog."""
