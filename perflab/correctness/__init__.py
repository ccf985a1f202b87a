"""Checks whether a kernel is right: derived error budgets, readable comparisons, runs that cannot be fooled.

    verify(my_kernel, make_inputs, reference=float64_definition, plain=same_mathematics_plainly)

`budget` computes how far off a tensor may be, `compare` how far off the tensor is and where, `poison` makes
memory that was never written visible, and `verify` puts a candidate through all of these checks. `diagnosis`
looks for the cause of an error. `configurations` and `forced` run an autotuned kernel in each
configuration that its tuner may choose. Nothing here knows attention, or pytest.
"""

from perflab.correctness.budget import Budget, Errors, derive_budget, measure_errors, rounding_band
from perflab.correctness.compare import Numbers, Report, TensorReport, compare, compare_all
from perflab.correctness.diagnosis import Evidence, Explanation, Hypothesis, explained, find_causes, find_hints
from perflab.correctness.forced import PrunedError, forced
from perflab.correctness.one_process import Cause, NotOneProcessError, RankStep, same_as_one_process
from perflab.correctness.operator import Operator, OperatorCase
from perflab.correctness.poison import PoisonedMemory
from perflab.correctness.run import same_bits
from perflab.correctness.verify import expanded_ones, random_upstream, verify
from perflab.internals.configurations import Configuration, configurations
from perflab.ranks.run import RankError, in_ranks

__all__ = [
    "Budget",
    "Cause",
    "Configuration",
    "Errors",
    "Evidence",
    "Explanation",
    "Hypothesis",
    "NotOneProcessError",
    "Numbers",
    "Operator",
    "OperatorCase",
    "PoisonedMemory",
    "PrunedError",
    "RankError",
    "RankStep",
    "Report",
    "TensorReport",
    "compare",
    "compare_all",
    "configurations",
    "derive_budget",
    "expanded_ones",
    "explained",
    "find_causes",
    "find_hints",
    "forced",
    "in_ranks",
    "measure_errors",
    "random_upstream",
    "rounding_band",
    "same_as_one_process",
    "same_bits",
    "verify",
]
