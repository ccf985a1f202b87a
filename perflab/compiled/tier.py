"""The compiled tier, behind the protocol of ``tiers.py``: Triton kernels compiled ahead of time, nothing run.

It has no stale files: what is registered is not known from tests, so ``perflab kernels --update`` removes them.
"""

from perflab.tiers import Tier

TIER = Tier(
    folder="triton-",
    unit="kernel",
    commands="perflab.compiled.command:commands",
    settings="perflab.compiled.settings:read",
    spread="perflab.compiled.run.cases:spread",
    run="perflab.compiled.run.cases:run",
    explain="perflab.compiled.report:explain_kernel",
    lines="perflab.compiled.report:lines",
    sections="perflab.compiled.report:sections",
    describe="perflab.compiled.report:describe",
    judge_runs="perflab.compiled.judge:judge_runs",
    save="perflab.compiled.run.kernels:save",
    join="perflab.compiled.store:join",
)
