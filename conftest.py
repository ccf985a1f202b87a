"""The lab's own options. The plugin comes by its entry point; a user's repository declares its options like this."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from perflab.results import Result

pytest_plugins = ["pytester"]

CONTEXT_LENGTHS = (128, 256, 512, 1024)

# Without a GPU Triton's kernels run in its interpreter, which has to be chosen before triton is imported. Asking
# PyTorch would load it for everybody, `pytest --help` included, so the driver's device file is asked instead.
if not (Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()):
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse what cannot be run at once."""
    from tests.perf.choice import check_choices

    check_choices(config)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare what the lab's cases are run on."""
    group = parser.getgroup("perflab lab", "the lab's models and shapes")
    group.addoption(
        "--model",
        default="small",
        metavar="NAME[,NAME...]",
        help="tiny, small, medium, large, xl, 2.7B, all (those but tiny), or package.module:factory (default: small)",
    )
    group.addoption(
        "--study-model",
        default="",
        metavar="NAME",
        help="the model of the studies of switches, compilation and memory (default: the first of --model on a GPU, "
        "tiny on a CPU)",
    )
    group.addoption(
        "--train-steps",
        default=100,
        type=int,
        metavar="N",
        help="training steps on real text before a switch's loss is read (default: 100)",
    )
    group.addoption(
        "--context-length",
        default=",".join(map(str, CONTEXT_LENGTHS)),
        metavar="N[,N...]",
        help="context lengths of the model cases (default: 128,256,512,1024)",
    )
    group.addoption("--batch-size", default=4, type=int, metavar="N", help="sequences in a batch (default: 4)")
    group.addoption(
        "--attention-grid",
        default="quick",
        choices=("quick", "reference", "training", "all"),
        help="shapes of the attention cases: a few (default: quick), those of published measurements, batch 4 with "
        "16 heads up to 32,768 tokens, or both",
    )
    group.addoption(
        "--attention",
        default="",
        metavar="NAME[,NAME...]",
        help="only these attention candidates: variants, or package.module:function for a kernel of your own",
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    """What was found out about the candidates that --attention names."""
    if not config.getoption("--attention"):
        return []
    from tests.correctness.suite.chosen import attention_candidates

    return [str(candidate) for candidate in attention_candidates(config)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`candidate` is each attention candidate; `case` with it, each of its cases."""
    if "candidate" not in metafunc.fixturenames:
        return
    from tests.correctness.suite.chosen import attention_candidates

    candidates = attention_candidates(metafunc.config)
    if "case" not in metafunc.fixturenames:
        metafunc.parametrize("candidate", candidates, ids=[candidate.name for candidate in candidates])
        return
    from tests.correctness.suite.grid import cases_for

    each = [(candidate, case) for candidate in candidates for case in cases_for(candidate.claims)]
    ids = [f"{candidate.name}-{case}" for candidate, case in each]
    metafunc.parametrize(("candidate", "case"), each, ids=ids)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --attention, keep what is about attention candidates."""
    if not config.getoption("--attention"):
        return
    from tests.correctness.suite.chosen import attention_candidates

    names = [candidate.name for candidate in attention_candidates(config)]

    def is_meant(item: pytest.Item) -> bool:
        parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
        return "candidate" in parameters or parameters.get("impl") in names

    config.hook.pytest_deselected(items=[item for item in items if not is_meant(item)])
    items[:] = [item for item in items if is_meant(item)]


def pytest_perf_findings(study: str, results: list[Result]) -> list[str] | None:
    """What the lab's studies come to. Here, where the process that collects the results of others looks for it too."""
    from tests.perf.studies.findings import findings_of

    return findings_of(study, results)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the wrong cases of a candidate have in common."""
    noted = [
        value
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        for name, value in getattr(report, "user_properties", ())
        if name == "attention"
    ]
    if not any(result["text"] for result in noted):
        return
    from tests.correctness.suite.tally import tally

    terminalreporter.section("attention")
    for line in tally(noted):
        terminalreporter.write_line(line)
