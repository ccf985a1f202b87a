"""The measured tier, behind the protocol of ``tiers.py``: cases that run here, compared with stored numbers."""

from perflab.tiers import Tier

TIER = Tier(
    folder="",
    run="perflab.measured.run.cases:run",
    explain="perflab.measured.report.failure:explain",
    lines="perflab.measured.report.section:lines",
    sections="perflab.measured.report.section:sections",
    notes="perflab.measured.report.section:notes",
    describe="perflab.measured.report.contents:describe",
    judge_runs="perflab.measured.judge.two_runs:judge_runs",
    data="perflab.measured.report.section:data",
    sets_beside="perflab.measured.report.side_by_side:side_by_side",
    own_columns="perflab.measured.report.columns:own_columns",
    take_turns="perflab.measured.run.tables:take_turns",
    save="perflab.measured.run.saving:save",
    stored="perflab.measured.store.stored:stored",
    join="perflab.measured.store.stored:join",
)
