"""How compared cases run in pytest: ``--perf-against``."""
