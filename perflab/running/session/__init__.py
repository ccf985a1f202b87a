"""The code around all cases of a session: start, order, collected results, files that are left behind."""
