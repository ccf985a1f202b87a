"""Calls that are measured: workloads, their ranges, their outputs and the processes that they fork."""
