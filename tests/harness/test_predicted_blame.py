"""What a failing prediction names first is what was changed: a table of faults, in models of several shapes."""

from __future__ import annotations

import functools

import pytest

from perflab.predicted.cuda.as_cuda import as_cuda
from perflab.predicted.cuda.fake import fake_tensors
from perflab.predicted.cuda.kernels import ON_CUDA
from perflab.predicted.gpus import parse_gpu
from perflab.predicted.judge.judge import baseline_of, judge_predicted
from perflab.predicted.prediction import Proofs, predict
from perflab.results.predicted import Prediction
from perflab.results.records import Policy, Verdict

from .faulty import build
from .traced import line_with

FAULTY = __file__.replace("test_predicted_blame", "faulty")


@functools.cache
def predicted(shape: str, *faults: str) -> Prediction:
    with fake_tensors(), as_cuda((9, 0)):
        return predict(build(shape, frozenset(faults)), parse_gpu("h100"), ON_CUDA, proofs=Proofs())[0]


TABLE = [
    ("gpt", "kept product", "blocks.* keeps 4 more tensors", "temporaries of aten::mul", "self.last = 1.0 * y"),
    (
        "gpt",
        "unfused attention",
        "blocks.*.attention, forward: ",
        "instead of 4 aten::_scaled_dot",
        "k.mT / 4.0, dim=-1)",
    ),
    ("gpt", "upcast before the norm", "blocks.*, forward: ", "8 more aten::_to_copy", "else self.norm(x)"),
    ("gpt", "upcast logits", "code outside of modules, forward: ", "larger aten::_to_copy", "logits = logits.float()"),
    ("gpt", "one layer of many", "blocks.*, forward: ", "1 more aten::mul", "y = y * 2.0"),
    ("gpt", "no checkpointing", "blocks.*", "more tensors at the peak: activations", ""),
    ("gpt", "dropout left on", "blocks.*.mlp.2, forward: ", "4 more aten::native_dropout", ""),
    ("gpt", "optimizer one by one", "code outside of modules, optimizer: ", "instead of 2 aten::_foreach_mul_", ""),
    ("gpt", "gradients zeroed", "code outside of modules, optimizer: ", "aten::zero_", ""),
    ("encoder-decoder", "copy in cross attention", "decoder.*.cross keeps 4 more", "aten::clone", "k = k.contiguous()"),
    # a module's row has one line, its first
    ("experts", "second gate", "gate, forward: ", "1 more aten::addmm", "scores = self.gate(x)"),
    ("experts", "larger workspace", "code outside of modules keeps larger", "aten::cat", "[mixed] * copies, dim=-1)"),
    ("conv net", "layer put into a Sequential", "features.1 keeps 1 more", "aten::softplus", ""),
    ("u-net", "copied skips", "code outside of modules, forward: ", "3 more aten::clone", ""),
    ("recurrent", "states kept", "code outside of modules keeps 16 more", "aten::add", "state.detach() + 0.0)"),
]
"""Shape of the model, fault, and what is named first: the module, the operator, the line by its end."""


@pytest.mark.parametrize(("shape", "fault", "module", "operator", "line"), TABLE)
def test_the_cause_is_named_first(shape: str, fault: str, module: str, operator: str, line: str) -> None:
    judgement = judge_predicted(predicted(shape, fault), baseline_of(predicted(shape), recorded=""), Policy())
    assert judgement.verdict is Verdict.REGRESSED
    first = judgement.reasons[0]
    assert first.startswith(module)
    assert operator in first
    if line:
        assert line_with(line, FAULTY) in first
