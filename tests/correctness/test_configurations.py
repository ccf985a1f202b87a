"""Autotuned kernels in every configuration: each wrong one is caught in the configuration that is wrong, and named."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from perflab import PerflabError
from perflab.correctness import Configuration, OperatorCase, PrunedError, configurations, forced
from perflab.lab.launch import is_interpreted

from .wrong_in_one_configuration import CONFIGS, ROW_SUM, not_reset, right, summed, unmasked, unwritten

pytestmark = [
    pytest.mark.correctness,
    pytest.mark.skipif(not is_interpreted(), reason="without the interpreter the first launch is tuned on a GPU"),
]
SMALL, TALL, WIDE = configurations(right)
CASES = ROW_SUM.cases(dtype=("fp32",), layout=("",), upstream=("",))
CASE = ROW_SUM.case(rows=16)


@pytest.mark.parametrize("configuration", configurations(right), ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_configuration_of_a_right_kernel_passes(
    case: OperatorCase, configuration: Configuration, device: torch.device
) -> None:
    with forced(right, configuration, outputs=["y_ptr"]):
        ROW_SUM.check(summed(right), case, device)


@pytest.mark.parametrize(
    ("kernel", "wrong"), [(unmasked, WIDE), (not_reset, TALL), (unwritten, TALL)], ids=["unmasked", "not_reset", "hole"]
)
def test_a_kernel_that_is_wrong_in_one_configuration_is_caught_there_alone(
    kernel: Any, wrong: Configuration, device: torch.device
) -> None:
    form = summed(kernel)  # one output for all, and a right configuration goes first
    for configuration in configurations(kernel):
        if configuration.name != wrong.name:
            with forced(kernel, configuration, outputs=["y_ptr"]):
                ROW_SUM.check(form, CASE, device)
    with (
        pytest.raises(
            AssertionError, match=f"{kernel.base_fn.__name__} in configuration {wrong}:\nrow_sum is wrong"
        ) as caught,
        forced(kernel, next(one for one in configurations(kernel) if one.name == wrong.name), outputs=["y_ptr"]),
    ):
        ROW_SUM.check(form, CASE, device)
    assert all(entry.path.name != "contextlib.py" for entry in caught.traceback if hasattr(entry.path, "name"))


def test_tuning_and_a_shared_output_hide_the_hole_that_poison_shows(device: torch.device) -> None:
    """What the autotuner does on a GPU: every configuration into one output, the fastest afterwards."""
    x, y = torch.randn(16, 48, device=device), torch.zeros(16, device=device)
    for config in (CONFIGS[0], CONFIGS[1]):
        unwritten.fn[(16 // config.kwargs["BLOCK_R"],)](x, y, 16, 48, **config.kwargs)
    torch.testing.assert_close(y, 0.5 * x.sum(-1))
    with forced(unwritten, configurations(unwritten)[1], outputs=["y_ptr"]):
        unwritten[(2,)](x, y, 16, 48)
    assert y.isnan().nonzero().flatten().tolist() == [4, 5, 6, 7, 12, 13, 14, 15]


def test_names_say_the_constants_warps_and_stages() -> None:
    assert [str(one) for one in configurations(right)] == [
        "BLOCK_R4-BLOCK_D16-w4-s2",
        "BLOCK_R8-BLOCK_D16-w4-s3",
        "BLOCK_R4-BLOCK_D64-w8-s2",
    ]


@pytest.fixture
def pruned() -> Iterator[None]:
    """The tuner of `right` with a rule: no more rows a program than there are."""
    right.early_config_prune = lambda configs, named, **rest: [
        one for one in configs if one.kwargs["BLOCK_R"] <= named["num_rows"]
    ]
    yield
    right.early_config_prune = None


def launch(x: Tensor) -> Tensor:
    return summed(right)(x)


def test_a_configuration_that_is_pruned_cannot_be_chosen(pruned: None) -> None:
    assert configurations(right, {"num_rows": 4, "num_columns": 48}) == (SMALL, WIDE)
    assert configurations(right, {"no rows": 4}) == (SMALL, TALL, WIDE), "the rule raises: all stay"
    words = f"right in configuration {TALL} is pruned for these arguments"
    with pytest.raises(PrunedError, match=words), forced(right, TALL, outputs=["y_ptr"]):
        launch(torch.randn(4, 48))


def test_afterwards_the_tuner_is_as_it_was() -> None:
    with pytest.raises(ZeroDivisionError), forced(right, TALL, outputs=["y_ptr"]):
        raise ZeroDivisionError
    assert right.configs == CONFIGS
    assert "run" not in vars(right)


def test_a_kernel_that_is_never_launched_is_not_proven() -> None:
    words = f"right in configuration {TALL} was not launched, so nothing is proven"
    with pytest.raises(AssertionError, match=words), forced(right, TALL, outputs=["y_ptr"]):
        pass


@pytest.mark.parametrize(
    ("kernel", "outputs", "words"),
    [
        (right.fn, ["y_ptr"], "right is not autotuned\n  -> give what @triton.autotune made"),
        (right, ["out"], "right has no parameter 'out' to poison\n  -> its parameters are x_ptr, y_ptr, num_rows"),
        (unmasked, ["y_ptr"], "there is no unmasked in configuration other\n  -> give one of configurations"),
    ],
    ids=["plain", "parameter", "configuration"],
)
def test_what_cannot_be_forced_is_an_error_with_its_remedy(kernel: Any, outputs: list[str], words: str) -> None:
    chosen = Configuration("other", CONFIGS[0]) if kernel is unmasked else SMALL
    with pytest.raises(PerflabError, match=words), forced(kernel, chosen, outputs=outputs):
        pass
