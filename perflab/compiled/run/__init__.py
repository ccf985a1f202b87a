"""Runs compiled cases in pytest, and the ``perflab kernels`` command."""
