"""The study of optimisations: each switch of the model and of the training step against the baseline, on real text.

Peak memory, tokens a second, speed beside the baseline's in turns with it, held-out loss after N training steps
(--train-steps), what the first steps cost beyond later ones, and a line of advice for each, derived from these numbers.
Then the ladder: what people combine, one more a rung, and every two of them by themselves.
"""

from __future__ import annotations

import pytest
import torch

from perflab import Perf
from tests.perf.attention_cases import device_type
from tests.perf.choice import study_model_name

from .switches import BASELINE, BOTTOM, Switch, ladder, switches
from .training import measure_switch

COLUMNS = "tokens_per_s, speed_ratio, peak, loss, setup_ns, turns, skipped_steps"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A case for each switch, and one for each rung."""
    where = device_type(metafunc.config)
    if "switch" in metafunc.fixturenames:
        metafunc.parametrize("switch", switches(metafunc.config.getoption("--train-steps"), where), ids=str)
    if "rung" in metafunc.fixturenames:
        ours = ":" not in study_model_name(metafunc.config, where)
        metafunc.parametrize("rung", ladder(where, ours=ours), ids=str)


@pytest.mark.perf(study="optimisations", columns=f"{COLUMNS}, parameters, against", versus=f"switch={BASELINE}")
def test_switch(perf: Perf, device: torch.device, request: pytest.FixtureRequest, switch: Switch) -> None:
    by_name = {one.name: one for one in switches(request.config.getoption("--train-steps"), device.type)}
    measure_switch(perf, switch, by_name[switch.against], device, request.config)


@pytest.mark.perf(study="ladder", columns=COLUMNS, versus=f"rung={BOTTOM}")
def test_ladder(perf: Perf, device: torch.device, request: pytest.FixtureRequest, rung: Switch) -> None:
    ours = ":" not in study_model_name(request.config, device.type)
    bottom, *_ = ladder(device.type, ours=ours)
    measure_switch(perf, rung, bottom, device, request.config)
