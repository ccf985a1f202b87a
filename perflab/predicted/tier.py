"""The predicted tier, behind the protocol of ``tiers.py``: cases traced on fake tensors for a GPU.

It runs no cases by itself: one may turn into a prediction when it says what it needs, so measured cases ask for it.
"""

from perflab.tiers import Tier

TIER = Tier(
    folder="predicted-",
    commands="perflab.predicted.dry_run.command:commands",
    settings="perflab.predicted.settings:read",
    announce="perflab.predicted.settings:announce",
    explain="perflab.predicted.report.failure:explain_prediction",
    lines="perflab.predicted.report.section:lines",
    sections="perflab.predicted.report.section:sections",
    describe="perflab.predicted.report.contents:describe",
    judge_runs="perflab.predicted.judge.judge:judge_runs",
    save="perflab.predicted.run.saving:save",
    stored="perflab.predicted.store.stored:stored",
    join="perflab.predicted.store.stored:join",
)
