"""Unmodified models of a public library, predicted and held against PyTorch's real CUDA build: memory and launches.

    pip install transformers==5.23.0   # into the environment with the CUDA build; perflab does not depend on it
    python -m nocuda run -- python -m tests.studies.public_models_against_real [--markdown] [--models=GPT-2,BERT]

Configurations are made here, weights are random: nothing is downloaded. A call is a training step: forward, backward,
an AdamW step, under bf16 autocast; a mixture of experts has its weights in bf16, since its grouped products loop over
experts on the host otherwise. Real are the caching allocator, its statistics and the launches (``nocuda``). Shapes:
tokens (B, T).
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from perflab.measure.calls.workload import Step
from perflab.predicted.prediction import Work
from perflab.predicted.run.exploring import work_of

from .predicted_against_real import Compared, compared, in_markdown, in_words, operators, print_operators, summary

LIBRARY = "transformers"
LAYERS = 6
BATCH_SIZE = 2
CONTEXT_LENGTH = 512
IMAGES = 8
_DECODER = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 4}


@dataclass(frozen=True)
class Model:
    """One model: the library's names of its classes, and what its configuration has of ours."""

    config: str
    model: str
    settings: dict[str, Any]
    tokens: int = CONTEXT_LENGTH
    """0: it takes images."""
    dtype: torch.dtype = torch.float32
    """Of the weights."""

    def work(self, device: str = "cuda:0") -> Work:
        """A training step, and what it works on, on whatever device is there."""
        library: Any = importlib.import_module(LIBRARY)
        with torch.device(device), _default_dtype(self.dtype):
            model = getattr(library, self.model)(getattr(library, self.config)(**self.settings)).train()
        with torch.device(device):
            if self.tokens:
                inputs = dict.fromkeys(("input_ids", "labels"), torch.zeros(BATCH_SIZE, self.tokens, dtype=torch.int64))
            else:
                inputs = {"pixel_values": torch.zeros(IMAGES, 3, 224, 224)}
                inputs["labels"] = torch.zeros(IMAGES, dtype=torch.int64)
        optimizer = torch.optim.AdamW(model.parameters())

        def forward() -> Any:
            with torch.autocast("cuda", torch.bfloat16):
                return model(**inputs).loss

        def backward(loss: Any) -> None:
            loss.backward()

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad()

        return work_of(Step(forward=forward, backward=backward, optimizer=update))


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Weights come to be in it: a model that is cast afterwards leaves the allocator the cache of another one."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


MODELS: dict[str, Model] = {
    "GPT-2": Model("GPT2Config", "GPT2LMHeadModel", {"n_layer": LAYERS}),
    "Llama": Model("LlamaConfig", "LlamaForCausalLM", {"num_hidden_layers": LAYERS, **_DECODER}),
    "Qwen2": Model("Qwen2Config", "Qwen2ForCausalLM", {"num_hidden_layers": LAYERS, "vocab_size": 32000, **_DECODER}),
    "BERT": Model("BertConfig", "BertForMaskedLM", {"num_hidden_layers": LAYERS}),
    "T5": Model(
        "T5Config",
        "T5ForConditionalGeneration",
        {"num_layers": LAYERS, "num_decoder_layers": LAYERS, "decoder_start_token_id": 0},
    ),
    "ViT": Model("ViTConfig", "ViTForImageClassification", {"num_hidden_layers": LAYERS}, tokens=0),
    "GPT-NeoX": Model(
        "GPTNeoXConfig",
        "GPTNeoXForCausalLM",
        {"num_hidden_layers": LAYERS, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16},
    ),
    "Mixtral": Model(
        "MixtralConfig",
        "MixtralForCausalLM",
        {"num_hidden_layers": LAYERS, "num_local_experts": 8, "num_experts_per_tok": 2, **_DECODER},
        dtype=torch.bfloat16,
    ),
    "Mamba": Model(
        "MambaConfig",
        "MambaForCausalLM",
        {"num_hidden_layers": LAYERS, "hidden_size": 768, "state_size": 16, "vocab_size": 50280},
        tokens=64,
    ),
}


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description="Predictions of a public library's models held against PyTorch.")
    parser.add_argument("--models", default=",".join(MODELS), metavar="NAME[,NAME...]")
    parser.add_argument("--markdown", action="store_true", help="the table of docs/predicted-against-real.md")
    parser.add_argument("--operators", action="store_true", help="operators of which launches or hidden bytes differ")
    parser.add_argument("--kernels", action="store_true", help="with --operators: what each launches")
    asked = parser.parse_args()
    names = asked.models.split(",")
    if asked.operators:
        for name in names:
            print_operators(name, operators(MODELS[name].work().run), kernels=asked.kernels)
        return
    rows: list[Compared] = []

    def each() -> Iterator[Compared]:
        for name in names:
            rows.append(compared(name, MODELS[name].work))
            yield rows[-1]

    if asked.markdown:
        rows = [compared(name, MODELS[name].work) for name in names]
        print("\n".join([*in_markdown(rows), "", *(f"- {line}" for line in summary(rows))]))
    else:
        for line in in_words(each()):
            print(line, flush=True)
        print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
