"""From ratios of fresh process pairs to a verdict: pure functions."""
