"""History: a series of each case and quantity over many runs, and the events in these series."""
