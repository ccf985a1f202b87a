"""Memory snapshots: read safely, summed up, shown and compared. Loads no torch, and runs nothing of what it reads."""
