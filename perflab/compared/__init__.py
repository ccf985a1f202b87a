"""The compared tier (A/B): base and head, each in its own processes, take turns on one machine."""
