"""What everything else stands on: frozen data, errors, amounts, files, git, and the reading of JSON."""
