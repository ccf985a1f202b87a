"""Every tile that the lab's autotuner may choose is right; unchanged ones take turns. PERFLAB_KERNELS=all runs all."""

from typing import Any

import pytest
import torch

from perflab.lab.launch import is_interpreted
from tests.perf import kernels

from . import digests, wrong_in_one_configuration
from .proofs import Proof, all_proofs, compiled_digests

pytestmark = [
    pytest.mark.correctness,
    pytest.mark.skipif(not is_interpreted(), reason="a GPU runs what its own tuner chooses"),
]


@pytest.mark.parametrize("proof", all_proofs(), ids=str)
def test_every_tile_that_may_be_chosen_is_right(proof: Proof, device: torch.device) -> None:
    if not digests.is_due(proof.name, proof.digest):
        pytest.skip(f"unchanged; its turn is PERFLAB_ROTATION={digests.turn_of(proof.name)}, not {digests.rotation()}")
    proof.run(device)


def test_a_changed_digest_is_due_and_an_unchanged_one_on_its_day_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "proven", lambda: {"a": "1"})
    monkeypatch.delenv("PERFLAB_KERNELS", raising=False)
    turn = digests.turn_of("a")
    days = []
    for day in range(digests.PARTS):
        monkeypatch.setenv("PERFLAB_ROTATION", str(day))
        assert digests.is_due("a", "2")
        assert digests.is_due("new", "1")
        days += [day] if digests.is_due("a", "1") else []
    assert days == [turn]
    monkeypatch.setenv("PERFLAB_ROTATION", str(turn + 1))
    monkeypatch.setenv("PERFLAB_KERNELS", "all")
    assert digests.is_due("a", "1")


def test_a_digest_is_of_the_kernel_with_what_it_calls_and_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel: Any = wrong_in_one_configuration.right.fn
    x = torch.empty(4, 8, device="meta")
    same = digests.arguments_digest(kernel, {"x_ptr": x, "EMULATE_BF16": True})
    assert digests.arguments_digest(kernel, {"EMULATE_BF16": False, "x_ptr": x.clone()}) == same
    assert digests.arguments_digest(kernel, {"x_ptr": x.mT}) != same
    assert digests.arguments_digest(kernel, {"x_ptr": x}, "num_warps=8") != same
    assert digests.arguments_digest(wrong_in_one_configuration.unmasked.fn, {"x_ptr": x}) != same
    before = digests.digest((digests.turn_of,))
    monkeypatch.setattr(digests, "PARTS", 11)
    digests._sources.cache_clear()
    assert digests.digest((digests.turn_of,)) != before, "a constant that it reads"


def test_words_change_no_digest_and_statements_do() -> None:
    plain = digests.statements("  def f(x):\n    return x + 1\n")
    assert digests.statements('def f( x ):\n    """More."""\n    return x + 1  # and why\n') == plain
    assert digests.statements("def f(x):\n    return x + 2\n") != plain


def test_every_compiled_kernel_has_a_digest_of_its_own() -> None:
    found = compiled_digests()
    assert {one.name for one in kernels.examples(90)} == {name[:-5] for name in found if name.endswith("-sm90")}
    assert len(set(found.values())) > len(found) / 3, "architectures may share one, kernels do not"
