"""The attention suite: the tests for any attention kernel, whoever wrote it. Its modules are public.

    perflab attention my_package.my_module:flash                                   # in any project
    pytest --pyargs perflab.attention.suite --attention=my_package.my_module:flash # likewise, with your own settings

grid        the factors of an attention case, and the cases that a candidate's claims call for
candidate   a candidate's claims: from the registry, or found out about a callable of the reader's
chosen      the candidates of a run, from the value of --attention
tensors     the tensors of a case
plain       attention in plain PyTorch, and the magnitude of its terms: the basis of the budgets
hold        the verification of one case, and the verdict on a wrong one
faults      the results of attention with a known fault: hypotheses that an error is compared with
diagnosis   the likely cause of an error
tally       the summary of many verdicts: what fails always, what never, and why
suite       the tests
plugin      pytest's side: spreads `candidate` and `case` over tests, and shows the tally
command     ``perflab attention``

Importing this package loads neither torch nor pytest; its modules do, but for ``plugin`` and ``command``.
"""
