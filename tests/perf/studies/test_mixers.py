"""The study of mixers: what a model loses or wins by another mixer than attention, or by experts, on real text.

Each has the parameters of the model with attention, within two percent, sees the same tokens in the same steps, and is
measured at the shortest and the longest of --context-length, with batches of as many tokens. Held-out loss after
--train-steps, tokens a second in turns with attention, peak memory, and the lines of code it is made of. In the chunked
form, unless the model says otherwise: --study-model=small,mixer_form=triton.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from perflab import Perf
from tests.perf.choice import context_lengths

from .mixers import NAMES, code_lines, mixer_switch
from .training import measure_switch, study_setup

COLUMNS = "tokens_per_s, speed_ratio, peak, loss, parameters, code_lines"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A case for each mixer at two lengths."""
    lengths = sorted(context_lengths(metafunc.config))
    metafunc.parametrize("context_length", list(dict.fromkeys((lengths[0], lengths[-1]))))
    metafunc.parametrize("mixer", NAMES)


@pytest.mark.perf(study="mixers", columns=COLUMNS, versus=f"mixer={NAMES[0]}")
def test_mixer(
    perf: Perf, device: torch.device, request: pytest.FixtureRequest, mixer: str, context_length: int
) -> None:
    setup = study_setup(request.config, device)
    if not setup.is_ours:
        pytest.skip(f"a switch of the lab's models, and {setup.model_name} is none: mixer")
    base = replace(setup.config, context_length=context_length)
    try:
        switch, attention = mixer_switch(mixer, base), mixer_switch(NAMES[0], base)
    except ValueError as error:  # a model whose heads are grouped, say
        pytest.skip(str(error))
    perf.note(code_lines=code_lines(mixer))
    measure_switch(perf, switch, attention, device, request.config)
