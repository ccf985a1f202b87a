"""Predictions of a public library's unmodified models, held to PyTorch's real CUDA build on a machine without a GPU.

pip install transformers==5.23.0
python -m nocuda run -- python -m pytest tests/correctness/test_public_models_against_real.py
"""

from __future__ import annotations

import pytest

from nocuda.launch import is_active

pytestmark = [
    pytest.mark.correctness,
    pytest.mark.skipif(not is_active(), reason="no nocuda: python -m nocuda run -- python -m pytest ..."),
]

WITHIN = 0.005
NAMES = ("GPT-2", "Llama", "Qwen2", "BERT", "T5", "ViT", "GPT-NeoX", "Mixtral", "Mamba")


@pytest.mark.parametrize("name", NAMES)
def test_a_training_step_takes_what_was_predicted(name: str) -> None:
    from tests.studies.predicted_against_real import compared
    from tests.studies.public_models_against_real import LIBRARY, MODELS

    pytest.importorskip(LIBRARY, reason=f"pip install {LIBRARY}")
    seen = compared(name, MODELS[name].work)
    assert seen.predicted.asked_bytes == seen.real.asked_bytes
    assert seen.predicted.launches == seen.real.launches
    assert abs(seen.off("allocated_bytes")) <= WITHIN
    assert abs(seen.off("reserved_bytes")) <= WITHIN
