"""Pure functions that turn the ratios of fresh process pairs into verdicts."""
