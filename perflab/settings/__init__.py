"""The options of a run, and the settings that they come to."""
