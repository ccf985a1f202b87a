"""What became of each case over many runs: series, where they changed, and which commits lie there. Loads no torch."""
