"""Studies: what was measured to write the tables in docs/, and the commands that measure it again."""
