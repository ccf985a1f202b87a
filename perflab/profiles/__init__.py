"""Profiles: where the time of one call goes, by operator, module, phase and category; the rows add up to the call."""
