"""Reads the configuration of a run once: settings, marks, the command line."""
