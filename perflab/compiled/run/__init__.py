"""How compiled cases run in pytest, and the ``perflab kernels`` command."""
