"""How attention is asked for: choices are explicit, errors say what to do, Triton is imported when wanted."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch import Tensor

import perflab.lab.attention
from perflab.lab.attention import IMPLEMENTATIONS, FlashAttentionPyTorch, attention, attention_with_logsumexp

pytestmark = pytest.mark.correctness

IN_PYTORCH = ("reference", "naive", "tiled", "sdpa")


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, dtype=dtype)


CODE = """
import json, os, sys
import torch

def text_of(error_type, action):
    try:
        action()
    except error_type as error:
        return str(error)

def load():
    from perflab.lab.attention import FlashAttentionTriton

def attend(impl="triton"):
    from perflab.lab.attention import attention
    q = torch.ones(1, 1, 4, 8)
    attention(q, q, q, impl=impl)

if os.fork() == 0:
    import triton
    os.environ["TRITON_INTERPRET"] = "1"
    print(json.dumps(["too late", text_of(RuntimeError, attend)]), flush=True)
    os._exit(0)
os.wait()
for impl in ("reference", "naive", "tiled", "sdpa"):
    attend(impl)
print(json.dumps(["imported for others", "triton" in sys.modules]))
sys.modules["triton"] = None
print(json.dumps(["missing", text_of(ImportError, load)]))
del sys.modules["triton"]
load()
print(json.dumps(["imported for its own", "triton" in sys.modules]))
print(json.dumps(["on a CPU", text_of(RuntimeError, attend)]))
"""


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    """What a process without the interpreter says of Triton: missing, on a CPU, and with the interpreter too late."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


def test_an_unknown_variant_is_refused_with_the_choices() -> None:
    q = ones(1, 1, 4, 8)
    with pytest.raises(ValueError, match="unknown attention impl 'flash'; choose one of: reference, naive, tiled"):
        attention(q, q, q, impl="flash")


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_a_misspelt_setting_is_refused_with_the_one_that_is_near(impl: str) -> None:
    q = ones(1, 1, 4, 8)
    with pytest.raises(TypeError, match=r"no setting 'is_casual' \(did you mean 'is_causal'\?\); its settings are"):
        attention(q, q, q, impl=impl, is_casual=True)  # type: ignore[call-arg]


def test_a_setting_of_no_name_that_is_known_is_refused_with_all_of_them() -> None:
    q = ones(1, 1, 4, 8)
    wanted = (
        "no setting 'attn_mask'; its settings are causal_alignment, dropout_p, is_causal, scale, "
        "sinks, softcap, window_size"
    )
    with pytest.raises(TypeError, match=wanted):
        attention_with_logsumexp(q, q, q, attn_mask=None)  # type: ignore[call-arg]


def test_a_variant_without_logsumexp_is_refused_with_those_that_have_it() -> None:
    q = ones(1, 1, 4, 8)
    with pytest.raises(ValueError, match="'sdpa' gives no log-sum-exp; choose one of: reference, naive, tiled"):
        attention_with_logsumexp(q, q, q, impl="sdpa")


@pytest.mark.parametrize(
    ("q", "k", "v", "error", "text"),
    [
        (ones(4, 8), ones(4, 8), ones(4, 8), ValueError, r"wants q, k and v as \(batch, heads, seq, head_dim\)"),
        (ones(1, 1, 4, 8), ones(1, 1, 5, 8), ones(1, 1, 6, 8), ValueError, r"k and v of one shape.*v \(1, 1, 6, 8\)"),
        (ones(1, 4, 4, 8), ones(1, 3, 4, 8), ones(1, 3, 4, 8), ValueError, "or a multiple of them"),
        (ones(1, 1, 4, 8), ones(1, 1, 4, 9), ones(1, 1, 4, 9), ValueError, r"one head dimension \(the last\)"),
        (ones(1, 1, 4, 8), ones(1, 1, 0, 8), ones(1, 1, 0, 8), ValueError, "every dimension to be 1 at least"),
        (
            ones(1, 1, 4, 8),
            ones(1, 1, 4, 8, dtype=torch.float64),
            ones(1, 1, 4, 8),
            TypeError,
            "one dtype out of float64, float32, bfloat16, float16; got.*k .* float64 on cpu",
        ),
        (*(3 * [ones(1, 1, 4, 8, dtype=torch.int64)]), TypeError, "got q .* int64.*Cast"),
    ],
    ids=["two-dimensional", "k-and-v", "heads", "head-dim", "empty", "mixed-dtypes", "integers"],
)
def test_inputs_that_do_not_fit_are_refused_with_what_was_given_and_wanted(
    q: Tensor, k: Tensor, v: Tensor, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        attention(q, k, v, impl="tiled")


def test_tensors_on_two_devices_are_refused() -> None:
    q = ones(1, 1, 4, 8)
    with pytest.raises(ValueError, match=r"on one device; got .* on cpu, .* on meta.*\.to\(device\)"):
        attention(q, q.to("meta"), q.to("meta"), impl="naive")


def test_the_autograd_function_names_both_of_its_layouts() -> None:
    with pytest.raises(ValueError, match=r"\(batch, seq, head_dim\) or \(batch, heads, seq, head_dim\)"):
        FlashAttentionPyTorch.apply(ones(4, 8), ones(4, 8), ones(4, 8), False)


def test_triton_refuses_float64_and_head_dimensions_that_no_tile_fits() -> None:
    wide, double = ones(1, 1, 4, 257), ones(1, 1, 4, 8, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"triton attention wants .* float32, bfloat16, float16; got q .* float64"):
        attention(double, double, double, impl="triton")
    with pytest.raises(ValueError, match="head dimensions up to 256, got 257; choose impl='tiled'"):
        attention(wide, wide, wide, impl="triton")


@pytest.mark.parametrize("case", ["missing", "on a CPU", "too late"])
def test_triton_that_cannot_run_says_why_and_does_not_fall_back(
    case: str, said: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    assert said[case] == snapshot


def test_triton_is_imported_only_when_it_is_asked_for(said: dict[str, Any]) -> None:
    assert (said["imported for others"], said["imported for its own"]) == (False, True)


def test_the_package_has_no_other_lazy_names() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'FlashAttentionCUDA'"):
        _ = perflab.lab.attention.FlashAttentionCUDA


def test_autocast_does_not_reach_into_the_tiles(device: torch.device) -> None:
    """Their float32 products would be rounded to bfloat16, in a backward inside the context too."""
    leaves = [torch.randn(1, 20, 16, device=device, requires_grad=True) for _ in "qkv"]

    def results() -> tuple[Tensor, ...]:
        out = FlashAttentionPyTorch.apply(*leaves, True)
        return out, *torch.autograd.grad(out.sum(), leaves)

    outside = results()
    with torch.autocast(device.type, torch.bfloat16):
        inside = results()
    for one, other in zip(outside, inside, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("impl", IN_PYTORCH)
def test_a_variant_compiles_without_graph_breaks(impl: str, device: torch.device) -> None:
    def run(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        leaves = [torch.randn(1, 2, 150, 16, device=device, requires_grad=True) for _ in "qkv"]
        out = function(*leaves)
        return out, *torch.autograd.grad(out.sum(), leaves)

    def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, is_causal=True, impl=impl)

    compiled = torch.compile(causal, backend="aot_eager", fullgraph=True)
    for one, other in zip(run(causal), run(compiled), strict=True):
        torch.testing.assert_close(one, other)


def test_the_registry_is_frozen_and_names_itself() -> None:
    assert all(name == claims.name for name, claims in IMPLEMENTATIONS.items())
    with pytest.raises(TypeError):
        IMPLEMENTATIONS["mine"] = IMPLEMENTATIONS["sdpa"]  # type: ignore[index]
