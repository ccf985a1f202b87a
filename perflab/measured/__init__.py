"""The measured tier: a case runs here, and its time, memory and counts are compared with stored baselines."""
