"""Records of what a run found: measurements, profiles, outcomes, judgements; and the files that hold them."""
