"""The attention suite: what an attention kernel is put through, whoever wrote it. Public, in its modules.

    perflab attention my_package.my_module:flash                                   # in any project
    pytest --pyargs perflab.attention.suite --attention=my_package.my_module:flash # the same, with your own settings

grid        the factors of an attention case, and the cases that a candidate's claims call for
candidate   what is known of a candidate: from the registry, or found out about a callable of the reader's
chosen      --attention: from its value to the candidates of a run
tensors     the tensors of a case
plain       the same mathematics in plain PyTorch, and the size of its terms: what budgets are derived from
hold        one case: verified, and what is said where it is wrong
faults      what attention with a known fault would give: hypotheses that an error is held against
diagnosis   the likely cause of an error
tally       many verdicts made one: what fails always, what never, and why
suite       the tests
plugin      pytest's side: `candidate` and `case` are spread over tests, the tally is shown
command     ``perflab attention``

Importing this package loads neither torch nor pytest; its modules do, but for ``plugin`` and ``command``.
"""
