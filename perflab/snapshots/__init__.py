"""Reads memory snapshots safely, sums them up, shows and compares them. Loads no torch and runs no code of a file."""
