"""What a run was asked for, read once: settings, marks, the command line."""
