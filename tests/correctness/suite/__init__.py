"""The attention suite: what a candidate is put through, whoever wrote it.

covering    rows in which every pair of levels of all factors occurs, as few as can be
grid        the factors of an attention case, and the cases that a candidate's claims call for
candidate   what is known of a candidate: from the registry, or found out about a callable of the reader's
chosen      --attention: from its value to the candidates of a run
hold        one case: verified, and what is said where it is wrong
faults      what attention with a known fault would give: hypotheses that an error is held against
tally       many verdicts made one: what fails always, what never, and why
"""
