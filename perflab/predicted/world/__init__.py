"""Worlds that are not here: one process plays a rank of a group whose other ranks do not exist."""
