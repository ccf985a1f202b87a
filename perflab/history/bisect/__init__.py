"""Which commit of a range made a case's quantity step: the paired comparison, by halves."""
