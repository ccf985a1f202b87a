"""Comparing with another commit or version on the same machine, both sides in processes of their own, in turn."""
