"""From a record and its baseline to a verdict: pure functions, without torch and pytest."""
