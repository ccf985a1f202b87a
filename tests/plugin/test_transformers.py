"""A public library's models, measured as its users call them: transformers' ``generate``, its continuous batching."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugin.conftest import Project, begin_repository, commit, one_line
from tests.plugin.warm import warm_python

MODEL = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

torch.set_num_threads(1)  # more would spin, waiting for each other

class Layer(LlamaDecoderLayer):
    def forward(self, hidden_states, *args, **more):
        x = super().forward(hidden_states, *args, **more)
        return x

def made():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    for n in range(config.num_hidden_layers):
        model.model.layers[n] = Layer(config, n)
    return model, torch.randint(3, 128, (2, 16))
"""

GENERATES = """
import pytest
from conftest import Virtual
from model import made

def spend(model, args, given):
    Virtual.now_ns += 100_000_000 * given["input_ids"].shape[1]  # 0.1 s a token of a sequence

@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate(perf, cache, new=5):
    model, ids = made()
    model.register_forward_pre_hook(spend, with_kwargs=True)
    out = perf.generation(
        lambda streamer: model.generate(
            ids, streamer=streamer, max_new_tokens=new, do_sample=False, cache_implementation=cache
        ),
        batch=2,
    )
    assert out.shape == (2, 16 + new)
"""


@pytest.fixture(scope="module")
def python_with_transformers() -> Iterator[str]:
    """With what the stories import, which would take most of their time."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with warm_python("transformers", "transformers.models.llama.modeling_llama") as launcher:
            yield launcher


@pytest.fixture
def generating(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, python_with_transformers: str) -> Project:
    """A project that measures a small Llama with random weights."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    project = Project(pytester, python_with_transformers)
    pytester.makepyfile(model=MODEL)
    project.test_file.write_text(GENERATES)
    return project


@pytest.fixture
def repository(generating: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The same in a git repository: the cause of a failure is found by profiling the baseline's commit."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    begin_repository(generating)
    return generating


def test_generate_is_measured_unchanged_and_a_slower_decode_is_found_by_its_counts(repository: Project) -> None:
    columns = "--perf-columns=ttft, tpot, tokens/s"
    saved = repository.run("--perf-update", "--perf-budget=4", "--perf-json", "saved.json", columns, passed=2)
    saved.stdout.re_match_lines(
        [
            r"generate\[dynamic\] +1\.60 s +100 ms +5\.00 +new, saved",
            r"  prefill 1\.60 s · decode 400 ms · .*",
            r"generate\[static\] +1\.60 s +100 ms +5\.00 +new, saved",
        ]
    )
    commit(repository, "baselines")
    repository.edit("        return x", "        return x if x.shape[1] > 1 else x + x.mean()", "model.py")
    failed = repository.run("--perf-budget=4", "--perf-json", "slower.json", failed=2)
    per_token = [
        [row["outcome"]["measurement"]["generation"]["statistics"]["operators/token"]["value"] for row in rows]
        for rows in map(repository.results, ("saved.json", "slower.json"))
    ]
    assert [after - before for before, after in zip(*per_token, strict=True)] == [4.0, 4.0], "2 layers, 2 operators"
    text = one_line(failed).partition("short test summary info")[0]  # which repeats failures where CI is set
    assert text.count("has higher counts than its baseline") == 2
    # Which of the operators of the added norms took longest, the noise may say.
    assert len(re.findall(r"cause: 8 more aten::(?:mean|add), with aten::(?:mean|add), ", text)) == 2
    assert text.count("in the decode of model.layers.* (model.py:10)") == 2
    assert "where:" not in text, "no phase takes longer"


def test_what_transformers_refuses_is_its_own_error(generating: Project) -> None:
    generating.edit("do_sample=False,", "do_sample=False, num_beams=2,")
    said = one_line(generating.run("--perf-check=off", "-k", "dynamic", failed=1))
    assert "ValueError: `streamer` cannot be used with beam search (yet!)." in said
    assert "perflab/" not in said, "its traceback is the user's and the library's"


BATCHES = """
import time
from itertools import pairwise
from statistics import fmean

import pytest
import torch
from model import made
from perflab.serving import Request, goodput, served
from transformers import GenerationConfig
from transformers.generation import ContinuousBatchingConfig

def test_requests():
    model, _ = made()
    prompts = [torch.randint(3, 128, (length,)).tolist() for length in (5, 9, 20)]
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    room = ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64)  # without it, 60 % of the machine's memory
    manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=room)
    manager.start()
    try:
        arrivals = {}
        for prompt in prompts:
            arrived_s = time.perf_counter()
            arrivals[manager.add_request(prompt, max_new_tokens=6, record_timestamps=True)] = arrived_s
            time.sleep(0.02)
        outputs = [manager.get_result(timeout=60) for _ in prompts]
    finally:
        manager.stop(block=True)
    requests = [Request(arrivals[one.request_id], tuple(one.timestamps)) for one in outputs]
    found = served(requests)
    assert found.completed == 3 and found.cancelled == found.unanswered == 0
    assert found.tokens_per_s * found.duration_s == 18
    waits = [[later - earlier for earlier, later in pairwise((one.arrival_s, *one.outputs_s))] for one in requests]
    assert found.ttft_s["p50"].value == sorted(first for first, *_ in waits)[1] > 0
    assert found.tpot_s["p50"].value == pytest.approx(sorted(fmean(rest) for _, *rest in waits)[1])
    assert goodput(requests, ttft_s=60, tpot_s=60) == found.requests_per_s > goodput(requests, ttft_s=1e-9)
    tokens = {tuple(one.prompt_ids): one.generated_tokens for one in outputs}
    for prompt in prompts:
        alone = model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False)
        assert tokens[tuple(prompt)] == alone[0, len(prompt):].tolist()
"""


def test_requests_of_continuous_batching_are_summed_up_as_served(generating: Project) -> None:
    (generating.pytester.path / "conftest.py").unlink()  # its threads take real time
    generating.test_file.write_text(BATCHES)
    generating.pytest(passed=1)
