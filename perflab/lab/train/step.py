"""One training step of a language model, in the three phases that are timed apart.

B batch, T sequence, V vocabulary, k micro-batches of B / k sequences.

    tokens (B, T) -> logits (B / k, T, V) -> loss      forward, k times; each
    gradient += d loss / d weights / k                 backward, right after it
    AdamW                                              optimizer, once

To the loss of a model with experts the two losses of its routers are added, and the optimizer phase moves their bias.

    step = TrainingStep(model, tokens, TrainingConfig(precision="bf16", micro_batches=2))
    loss = step()

AdamW is Loshchilov & Hutter 2019, algorithm 2. Every switch is in `config.py`. A step whose loss is not finite is
skipped and counted; of its gradient the same is asked only where it is clipped or its loss scaled (`skipping.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from perflab.lab.experts.mixture import collecting, expert_layers
from perflab.lab.experts.router import weighted_loss
from perflab.lab.parallel import ShardedUpdate, make_exchange
from perflab.lab.train.compiled import compiled_model, replays_cuda_graphs
from perflab.lab.train.config import TrainingConfig
from perflab.lab.train.loss import clamp_loss, cross_entropy_loss
from perflab.lab.train.precision import PRECISIONS
from perflab.lab.train.schedule import learning_rate_at
from perflab.lab.train.skipping import Unwatched, watch_for

_PLAIN = TrainingConfig()


class Training(TypedDict):
    """The state of a training beside the weights, in tensors on the CPU."""

    steps_done: int
    optimizer: dict[str, dict[str, Tensor]]
    """AdamW's tensors by the parameter's name and their own: `step`, `exp_avg` and `exp_avg_sq`."""
    scaler: dict[str, Any]
    """The state of loss scaling; empty without it."""


class State(TypedDict):
    """The tensors of a model's `state_dict` by name, on the CPU, and the state of its training."""

    weights: dict[str, Tensor]
    training: Training


class TrainingStep:
    """A model, a batch and an AdamW optimizer; each call of a phase does that phase's work once.

    With `config.micro_batches` = k a step is k times `backward(forward())`, then `optimizer()`. What is compiled is
    compiled by the first `forward()` and the first `backward()`, none of it at construction: to time the set-up, time
    these two calls of a fresh step (and once more, on CUDA, in modes with CUDA graphs, which are recorded next).

    An update is skipped where a loss is not finite. Gradients that are not, of losses that are, skip it too with
    `max_grad_norm` or fp16's loss scaling; without either nobody looks at them, and they get into the weights.

    Args:
        model: maps integer tokens (B, T) to logits (B, T, V); put into training mode, its weights cast in place to the
            dtype of `config.precision`. Checkpointing needs its attribute `checkpointing`, which is set; compiling
            attention its `blocks`.
        tokens: the batch, (B, T) int64, on the model's device, B a multiple of k; used again in every step until
            `step.tokens` is given the next, or `step(tokens)`.
        config: the switches; a plain float32 step by default.

    Attributes:
        model: as it was given, uncompiled unless its attention is, and without the wrapper of an exchange.
        adamw: the optimizer.
        exchange: what makes the gradients of all processes one; None in a process that trains alone.
        steps_done: calls of `optimizer()`, skipped steps too: where the schedule is. Set it to go on from there.

    Raises:
        ValueError: the model has no parameters, or lacks what a switch needs; the batch is on another device, of
            another shape, or does not divide into micro-batches.
        RuntimeError: compiling for a CPU without a C++ compiler.
    """

    def __init__(self, model: nn.Module, tokens: Tensor, config: TrainingConfig = _PLAIN) -> None:
        parameter = next(model.parameters(), None)
        if parameter is None:
            raise ValueError(f"{type(model).__name__} has no parameters; wanted a model that can be trained")
        self.config = config
        self._device = parameter.device
        self.tokens = tokens
        self._precision = PRECISIONS[config.precision]
        self.model = self._precision.prepare(model).train()
        _set_checkpointing(model, config.checkpointing)
        self._experts = expert_layers(model)
        self.exchange = make_exchange(config.exchange, model, config.bucket_mb) if config.exchange != "none" else None
        self._logits = compiled_model(
            model if self.exchange is None else self.exchange.model, config.compile, self._device
        )
        self._keeps_gradients = replays_cuda_graphs(config.compile, self._device)
        trained = [one for one in model.parameters() if one.requires_grad]
        self._shards = ShardedUpdate(trained) if config.shard_optimizer else None
        self.adamw = torch.optim.AdamW(
            model.parameters() if self._shards is None else self._shards.own,
            lr=config.learning_rate,
            betas=config.betas,
            weight_decay=config.weight_decay,
            foreach=config.optimizer == "foreach",
            # One implementation on CPU and CUDA alike, and no temporary as large as the parameters.
            fused=config.optimizer == "fused",
        )
        self._scaler = torch.amp.GradScaler(self._device.type) if self._precision.loss_scaling else None
        skips = config.skip_non_finite or self._scaler is not None
        self._watch = watch_for(config.optimizer, parameter) if skips else Unwatched()
        self._backwards = 0  # since the last update
        self.steps_done = 0

    @property
    def tokens(self) -> Tensor:
        """The batch, (B, T). A new one begins with its first micro-batch."""
        return self._tokens

    @tokens.setter
    def tokens(self, tokens: Tensor) -> None:
        if tokens.device != self._device:
            raise ValueError(
                f"tokens on {tokens.device}, model on {self._device}; move the batch with "
                f"tokens.to({str(self._device)!r})"
            )
        if tokens.ndim != 2:
            raise ValueError(f"tokens of shape {tuple(tokens.shape)}: wanted (batch, sequence)")
        size, parts = tokens.shape[0], self.config.micro_batches
        if size % parts:
            raise ValueError(
                f"a batch of {size} sequences does not divide into micro_batches={parts}; give a multiple such as "
                f"{-(-size // parts) * parts} sequences, or another micro_batches"
            )
        self._tokens, self._position = tokens, 0
        self._weight: Tensor | None = None

    @property
    def skipped_steps(self) -> int:
        """Steps that were not taken because what is watched was not finite. On CUDA, reading it waits."""
        return self._watch.skipped

    @property
    def loss_scale(self) -> float:
        """The factor of the loss before backward; 1 without loss scaling. Reading the factor waits for the device."""
        return 1.0 if self._scaler is None else self._scaler.get_scale()

    def forward(self) -> Tensor:
        """Loss of the next micro-batch, a scalar with the graph behind it; after the last comes the first again."""
        tokens = self._next_micro_batch()
        if self._keeps_gradients:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        config = self.config
        if self.exchange is not None:
            self.exchange.begin(last=(self._backwards + 1) % config.micro_batches == 0)
        with self._switched(), self._precision.applied(self._device.type), collecting(self._experts) as of_routers:
            logits = self._logits(tokens)
        loss = cross_entropy_loss(logits, tokens, fused=config.fused_loss)
        loss = loss if config.loss_clamp is None else clamp_loss(loss, config.loss_clamp)
        if of_routers:
            loss = loss + weighted_loss(of_routers, config.balance_weight, config.router_z_weight)
        return loss

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of `loss`, divided by the number of micro-batches, to the parameters' gradients."""
        if self._keeps_gradients:
            self._make_gradients()
        share = loss if self.config.micro_batches == 1 else loss / self.config.micro_batches
        if self.exchange is not None:
            self._weight = self.exchange.weight(self._tokens.numel()) if self._weight is None else self._weight
            share = share * self._weight
        scaled = share if self._scaler is None else self._scaler.scale(share)
        with self._switched(), self._precision.products_applied():
            scaled.backward()  # type: ignore[no-untyped-call]
        self._watch.watch(loss)  # once backward is launched: on the host, this may wait
        self._backwards += 1

    def optimizer(self) -> None:
        """Update the parameters, or skip that, and let the gradients go, so that the next forward starts without them.

        Raises:
            RuntimeError: the gradients are not those of whole batches.
        """
        parts = self.config.micro_batches
        if self._backwards == 0 or self._backwards % parts:
            raise RuntimeError(
                f"optimizer() after {self._backwards} of {parts} micro-batches: call "
                f"backward(forward()) {parts - self._backwards % parts} more times, or the step itself, step()"
            )
        if self.exchange is not None:
            self.exchange.finish()
        if self._scaler is not None:
            self._scaler.unscale_(self.adamw)
            for found_inf in self._scaler._found_inf_per_device(self.adamw).values():
                self._watch.overflow(found_inf)
        limit = self.config.max_grad_norm
        if limit is not None:
            # Dividing by a norm that is infinite would leave a gradient of zeros and NaN.
            if self.exchange is None:
                norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
            else:
                norm = self.exchange.clip(limit)
            self._watch.watch(norm)
        self._set_learning_rate()
        if self.exchange is not None:
            self._watch.agree(self.exchange, self._device)
        self._watch.update(self.adamw)
        if self._shards is not None:
            self._shards.send()
        if self._scaler is not None:
            self._scaler.update()
        for layer in self._experts:
            layer.move_bias(self.config.router_bias_rate)
        # The optimizer of a process that updates a share has only that; all gradients are there.
        holder = self.adamw if self._shards is None else self.model
        holder.zero_grad(set_to_none=not self._keeps_gradients)
        self._backwards = self._position = 0
        self.steps_done += 1
        if self.config.empty_cache and self._device.type != "cpu":
            torch.get_device_module(self._device).empty_cache()

    def __call__(self, tokens: Tensor | None = None) -> Tensor:
        """A whole step, on the next batch if one is given.

        Returns the mean loss before the update, detached so that it keeps no graph alive.
        """
        if tokens is not None:
            self.tokens = tokens
        losses = []
        for _ in range(self.config.micro_batches):
            loss = self.forward()
            self.backward(loss)
            losses.append(loss.detach())
        self.optimizer()
        return losses[0] if len(losses) == 1 else torch.stack(losses).mean()

    def state(self) -> State:
        """Return the weights and what training goes on from, whole, however many processes have parts of it.

        All processes have to call, between two steps. `save_checkpoint(path, model, **step.state())` in one of them
        writes it; `load_checkpoint(path, model)` before, and `resume` after a step is made, take it up in any number
        of processes.
        """
        if self.exchange is not None:
            self.exchange.settle()
        weights = {}
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            weights[name] = self._whole(tensor, tensor.detach()) if isinstance(tensor, nn.Parameter) else tensor
        optimizer: dict[str, dict[str, Tensor]] = {}
        for name, parameter in self.model.named_parameters():
            state = self.adamw.state.get(parameter, {})
            state = state if self._shards is None else self._shards.of_owner(parameter, state)
            if state:
                optimizer[name] = {
                    key: self._whole(parameter, value).to("cpu", copy=True) for key, value in state.items()
                }
        scaler = {} if self._scaler is None else self._scaler.state_dict()
        return {
            "weights": {name: tensor.to("cpu", copy=True) for name, tensor in weights.items()},
            "training": {"steps_done": self.steps_done, "optimizer": optimizer, "scaler": scaler},
        }

    def resume(self, training: Training) -> None:
        """Go on from the `training` of a `state`; the weights are the model's own. All processes have to call.

        Raises:
            ValueError: the state is of another model.
        """
        parameters = dict(self.model.named_parameters())
        if odd := sorted(training["optimizer"].keys() - parameters.keys()):
            raise ValueError(f"the state is of another model: {type(self.model).__name__} has no {', '.join(odd[:3])}")
        updated = {one for group in self.adamw.param_groups for one in group["params"]}
        for name, state in training["optimizer"].items():
            parameter = parameters[name]
            for key, value in state.items() if parameter in updated else ():
                on_host = key == "step" and not self.adamw.defaults["fused"]
                moved = value.clone() if on_host else value.to(self._device, copy=True)
                self.adamw.state[parameter][key] = (
                    moved if self.exchange is None else self.exchange.part(parameter, moved)
                )
        if self._scaler is not None:
            self._scaler.load_state_dict(training["scaler"])
        self.steps_done = training["steps_done"]

    def _whole(self, parameter: nn.Parameter, tensor: Tensor) -> Tensor:
        return tensor if self.exchange is None else self.exchange.whole(parameter, tensor)

    def _next_micro_batch(self) -> Tensor:
        parts = self.config.micro_batches
        if parts == 1:
            return self._tokens
        size, position = self._tokens.shape[0] // parts, self._position
        self._position = (position + 1) % parts
        return self._tokens[position * size : (position + 1) * size]

    @contextmanager
    def _switched(self) -> Iterator[None]:
        """PyTorch's global switches that stand in the configuration, and afterwards as they were."""
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = self.config.cudnn_benchmark
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = before

    def _make_gradients(self) -> None:
        # Gradients that a CUDA graph has written lie in its memory, and its next replay writes there again: they would
        # not live until the second micro-batch. Where a gradient is there already, autograd adds to that.
        for parameter in self.model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def _set_learning_rate(self) -> None:
        config = self.config
        if config.warmup_steps == 0 and config.total_steps is None:
            return  # constant, and whatever the caller has made of it
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate_at(
                self.steps_done,
                peak=config.learning_rate,
                warmup_steps=config.warmup_steps,
                total_steps=config.total_steps,
                final_share=config.final_learning_rate_share,
            )


def _set_checkpointing(model: nn.Module, checkpointing: str) -> None:
    if isinstance(getattr(model, "checkpointing", None), str):
        model.checkpointing = checkpointing  # type: ignore[assignment]
    elif checkpointing != "none":
        raise ValueError(
            f"checkpointing={checkpointing!r} wants a model with an attribute `checkpointing`, a string that "
            f"its forward heeds, and {type(model).__name__} has none; give checkpointing='none'"
        )
