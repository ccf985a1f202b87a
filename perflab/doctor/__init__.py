"""Measures the gate itself on this machine: the rate of false alarms, the slowdowns that it finds, and its cost."""
