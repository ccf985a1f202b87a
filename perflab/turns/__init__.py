"""Two versions of the code, measured in turns by a process each."""
