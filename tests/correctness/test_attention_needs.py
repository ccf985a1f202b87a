"""What the attention cases say beforehand: their memory, held against exact peaks; their shapes and published numbers.

Shapes: q, k, v (B, H, N, D).
"""

import pytest
import torch
from torch import Tensor

from perflab import Result, Verdict
from perflab.lab.attention import attention
from perflab.measure.calls.workload import Workload
from perflab.measure.memory.peak import measure_memory
from perflab.results.measured import MeasuredCase
from perflab.results.measurement import OutOfMemory
from tests.harness.make import environment, record, result
from tests.perf.attention_cases import GRIDS, Shape, grid, memory_bytes, published
from tests.perf.growth import fit, growth_findings

pytestmark = pytest.mark.correctness

CPU = torch.device("cpu")


def peak_bytes(impl: str, shape: Shape, *, backward: bool) -> int:
    """Of one call with its inputs, exact on a CPU."""
    inputs = shape.inputs(CPU, requires_grad=backward)
    upstream = torch.ones_like(inputs[0])

    def call(*tensors: Tensor) -> object:
        out = attention(*tensors[:3], is_causal=shape.is_causal, impl=impl)
        return torch.autograd.grad(out, tensors[:3], tensors[3]) if backward else out

    given = (*inputs, upstream) if backward else tuple(inputs)
    call(*given)
    return measure_memory(Workload(call, given, {}), CPU)[0].peak_bytes


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "step"])
@pytest.mark.parametrize("impl", ["naive", "sdpa-math", "flex"])
def test_the_memory_that_a_case_asks_for_is_what_the_quadratic_variants_take(
    impl: str, backward: bool, precision: str
) -> None:
    if impl == "flex" and backward:
        pytest.skip("it has no backward on a CPU")
    for is_causal in (True, False):
        shape = Shape(1, 2, 512, 32, precision, is_causal)
        taken = peak_bytes(impl, shape, backward=backward)
        assert taken <= memory_bytes(impl, shape, "cpu", backward=backward) <= 1.35 * taken


def test_the_memory_that_a_tiled_case_asks_for_is_linear_and_enough() -> None:
    shape = Shape(1, 2, 1024, 64, "fp32")
    asked = memory_bytes("tiled", shape, "cpu", backward=True)
    assert peak_bytes("tiled", shape, backward=True) <= asked
    assert memory_bytes("tiled", Shape(1, 2, 2048, 64, "fp32"), "cpu", backward=True) == 2 * asked


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize("name", GRIDS)
def test_every_shape_of_a_grid_has_an_id_of_its_own(name: str, device_type: str) -> None:
    ids = [shape.id for shape in grid(name, device_type)]
    assert len(set(ids)) == len(ids) > 0


def test_the_cpus_ids_are_those_that_baselines_are_saved_under() -> None:
    assert [shape.id for shape in grid("quick", "cpu")] == ["256-64", "1024-64", "256-128"]


def test_the_reference_grid_is_every_published_row() -> None:
    assert len(published()) == len(grid("reference", "cuda")) == 36 + 32
    assert published()[128, 64, "bf16"] == {
        "compiled_forward": pytest.approx(0.149e-3),
        "compiled_backward": pytest.approx(0.911e-3),
        "compiled_end_to_end": pytest.approx(1.06e-3),
        "triton_forward": pytest.approx(0.009e-3),
        "triton_backward": pytest.approx(2.597e-3),
        "triton_end_to_end": pytest.approx(2.607e-3),
    }


def test_causal_attention_does_half_of_the_work() -> None:
    whole = Shape(2, 3, 100, 16, "fp32", is_causal=False)
    assert whole.flops == 4 * 2 * 3 * 100**2 * 16
    assert Shape(2, 3, 100, 16, "fp32").flops == whole.flops / 2


def test_a_curve_is_found_again_through_its_own_points() -> None:
    found = fit([(n, 25 * n * n + 1024 * n + 4096) for n in (128, 256, 512, 4096)])
    assert (found.quadratic, found.linear, found.constant) == pytest.approx((25, 1024, 4096))
    assert found.worst < 1e-9


def measured(impl: str, tokens: int, peak: int | None, saved: int | None) -> Result:
    """A case of the study; one without numbers has run out of memory."""
    case = f"tests/perf/test_attention_memory.py::test_attention_memory[{impl}-{tokens}]"
    parameters = {"impl": impl, "seq_len": tokens}
    if peak is None:
        lost = MeasuredCase(
            case=case, environment=environment(), parameters=parameters, out_of_memory=OutOfMemory(asked_bytes=2**40)
        )
        return result(case, Verdict.OOM, outcome=lost)
    facts = {"step_peak_bytes": peak, "saved_bytes": saved}
    return result(case, outcome=record(case=case, parameters=parameters, facts=facts))


def test_a_length_that_ran_out_of_memory_is_no_point_of_a_variants_curve() -> None:
    cases = [measured("naive", n, 2 * n * n, n) for n in (128, 256, 512, 1024)]
    shown = growth_findings([*cases, measured("naive", 2048, None, None)])
    assert shown == [
        "naive  peak       2.00 B/token²        +0 B/token         +0 B   within 0.0%",
        "naive  saved      0.00 B/token²        +1 B/token         +0 B   within 0.0%",
    ]
    assert max(map(len, shown)) <= 80
    assert growth_findings(cases[:3]) == [], "three points lie on every such curve"
