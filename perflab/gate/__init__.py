"""From numbers to verdicts: the baseline store, and a judge that is a pure function. Imports no torch."""
