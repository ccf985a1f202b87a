"""Every attention candidate against the float64 definition, in what it claims: output, log-sum-exp, gradients.

Candidates are the lab's variants, or those that --attention names. grid.py defines the cases; budgets are derived, see
perflab.correctness.budget; a candidate runs as in perflab.correctness.verify. The suite needs pytest and torch, nothing
else. A project has the suite among its own tests with ``from perflab.attention.suite import *`` in a test file, and
``pytest_plugins = ["perflab.attention.plugin"]`` in the root ``conftest.py``.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch

from perflab.attention.candidate import KNOWN_DEFECTS, SUITE_FEATURES, Candidate
from perflab.attention.grid import Case
from perflab.attention.hold import complaint, hold, inputs_of
from perflab.correctness import same_bits

pytestmark = pytest.mark.correctness

# More than one tile in every direction, several heads: the order of additions could differ anywhere.
REPEATED = {dtype: Case(150, 203, 40, dtype, mask="causal", heads="h3:3") for dtype in ("fp32", "bf16")}
ASKED: Mapping[str, Mapping[str, Any]] = {
    "causal": {"mask": "causal"},
    "bottom-right": {"mask": "bottomright"},
    "window": {"mask": "window"},
    "sinks": {"mask": "sinks"},
    "softcap": {"softcap": "softcap3"},
    "grouped-heads": {"heads": "h4:2"},
    "scale": {"scale": "scale0.37"},
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Run PyTorch in one thread: on matrices this small, its threads wait for each other longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_case_is_right(
    candidate: Candidate, case: Case, device: torch.device, record_property: Callable[[str, object], None]
) -> None:
    """A candidate is right in a case that its claims call for; a failure says what, where, by how much, and why."""
    hold(candidate, case, device, record_property)


def test_lengths_of_many_tiles_are_right_where_cases_are_small(candidate: Candidate, device: torch.device) -> None:
    """A candidate is right with many tiles each way; in Triton's interpreter the other cases are small."""
    if not candidate.claims.interpreted:
        pytest.skip(f"{candidate.name} has such lengths among its cases")
    # A candidate without gradients is for generating: few queries.
    case = Case(
        575 if candidate.claims.gradients else 97,
        640,
        64,
        "bf16" if "bf16" in candidate.claims.dtypes else candidate.claims.dtypes[0],
    )
    hold(candidate, case, device, lambda name, value: None)


@pytest.mark.parametrize("feature", SUITE_FEATURES)
def test_what_is_not_claimed_is_refused(candidate: Candidate, feature: str, device: torch.device) -> None:
    """A skip says what was not tested; a variant of the lab's that computes something instead of refusing fails."""
    if feature in candidate.claims.features:
        return
    if not candidate.known_variant:
        pytest.skip(f"{candidate.name} does not claim {feature}: not tested")
    case = Case(17, 3, 16, candidate.claims.dtypes[0], **ASKED[feature])
    with pytest.raises(NotImplementedError, match=f"{candidate.name}' has no .*{feature}"):
        candidate.call(*inputs_of(case, device)(0).values(), **case.settings)
    pytest.skip(f"{candidate.name} does not claim {feature}, and refuses it: not tested")


# A case that shows each defect, where PyTorch's CPU kernel has it (2.13).
WITNESSES = {
    "negative_scale": Case(65, 90, 32, "fp32", mask="causal", scale="scale-0.2"),
    "grouped_16_bit": Case(113, 2, 16, "fp16", heads="h6:1", upstream="dones"),
    "one_query_16_bit": Case(
        1,
        799,
        59,
        "fp16",
        mask="bottomrightwindow",
        softcap="softcap3",
        scale="scale0.37",
        heads="h6:1",
        batch=2,
        data="large",
        upstream="doffset",
    ),
}


@pytest.mark.parametrize("defect", KNOWN_DEFECTS)
def test_a_known_defect_of_pytorchs_leaves_cases_out(candidate: Candidate, defect: str, device: torch.device) -> None:
    """A known defect leaves cases out as long as it exists: once it is mended, the cases are to be taken in again."""
    if getattr(candidate.claims, defect):
        return
    # sdpa-math shows its defect in no case this small; compiled is compiled anew on each machine.
    if candidate.name not in ("sdpa-math", "compiled"):
        assert complaint(candidate, WITNESSES[defect], device).text, f"fixed here: remove {defect} from KNOWN_DEFECTS"
    pytest.skip(f"{candidate.name}: {KNOWN_DEFECTS[defect]}: not tested")


@pytest.mark.parametrize("dtype", REPEATED)
def test_a_candidate_that_promises_it_repeats_bit_by_bit(
    candidate: Candidate, dtype: str, device: torch.device
) -> None:
    """A deterministic candidate repeats output, log-sum-exp and gradients bit by bit."""
    if not candidate.deterministic:
        pytest.skip(f"{candidate.name} does not promise to: {why_not(candidate)}")
    if dtype not in candidate.claims.dtypes:
        pytest.skip(f"{candidate.name} does not take {dtype}")
    case = REPEATED[dtype]

    def run() -> list[torch.Tensor]:
        leaves = [x.requires_grad_(candidate.claims.gradients) for x in inputs_of(case, device)(0).values()]
        returned = candidate.call(*leaves, **case.settings)
        results = [returned] if isinstance(returned, torch.Tensor) else list(returned)
        if not candidate.claims.gradients:
            return results
        return [*results, *torch.autograd.grad(results[0].float().square().sum(), leaves)]

    for one, other in zip(run(), run(), strict=True):
        assert same_bits(one, other), "the same inputs gave other bits: sums in an order that changes (atomics?)"


def why_not(candidate: Candidate) -> str:
    """Return the reason why a candidate is not tested to repeat itself."""
    if not candidate.known_variant:
        return f"set {candidate.name.partition(':')[2]}.deterministic = True to test that it is"
    return "its CUDA backwards may add up gradients with atomics, in an order that differs from run to run"
