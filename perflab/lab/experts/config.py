"""The settings of a mixture of experts, checked once. Plain data: nothing here builds a tensor."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal, get_args

Router = Literal["softmax", "top-k-softmax", "sigmoid"]
Product = Literal["loop", "grouped", "triton"]


@dataclass(frozen=True, kw_only=True)
class ExpertConfig:
    """A mixture of experts, as `ModelConfig.experts` holds it.

    Args:
        num_experts: E, those that the router chooses from.
        experts_per_token: k.
        shared_experts: s, those that every token passes through.
        router: "softmax": of all E, then the k largest, as they are (Fedus et al. 2021, section 2.1);
            "top-k-softmax": of the k largest logits alone, so that weights sum to 1 (Shazeer et al. 2017, equation 5);
            "sigmoid": of each logit by itself, over the sum of the chosen, which a bias helps to choose
            (DeepSeek-AI 2024, DeepSeek-V3, equations 13 to 16).
        capacity_factor: in training an expert takes at most ceil(factor n k / E) of n tokens; None: all (dropless).
        expert_product: how: "loop", an expert at a time; "grouped", PyTorch's `grouped_mm`; "triton", the lab's kernel.

    Raises:
        ValueError: a value is out of range or two do not fit each other; names the value and a remedy.
        TypeError: a number is not of the kind that is wanted.
    """

    num_experts: int = 8
    experts_per_token: int = 2
    shared_experts: int = 0
    router: Router = "top-k-softmax"
    capacity_factor: float | None = None
    expert_product: Product = "grouped"

    def __post_init__(self) -> None:
        for name, least in (("num_experts", 1), ("experts_per_token", 1), ("shared_experts", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"experts.{name}={value!r}: wanted an integer, got {type(value).__name__}")
            if value < least:
                raise ValueError(f"experts.{name}={value}: wanted {least} or more; give experts.{name}={least} or more")
        if self.experts_per_token > self.num_experts:
            raise ValueError(
                f"experts.experts_per_token={self.experts_per_token} of experts.num_experts={self.num_experts}: wanted "
                f"no more than there are; give experts.num_experts={self.experts_per_token} or more"
            )
        for name, kinds in (("router", get_args(Router)), ("expert_product", get_args(Product))):
            if getattr(self, name) not in kinds:
                raise ValueError(f"experts.{name}={getattr(self, name)!r}: wanted one of {', '.join(kinds)}")
        factor = self.capacity_factor
        if factor is not None:
            if isinstance(factor, bool) or not isinstance(factor, int | float):
                raise TypeError(f"experts.capacity_factor={factor!r}: wanted a number or None")
            if not (math.isfinite(factor) and factor > 0):
                raise ValueError(
                    f"experts.capacity_factor={factor!r}: wanted a positive, finite number, such as 1.25, or None for "
                    f"experts that take all"
                )

    def expert_width(self, d_ff: int) -> int:
        """F, the width of one expert: `d_ff / (k + s)`. ValueError if that is no whole number."""
        parts = self.experts_per_token + self.shared_experts
        if d_ff % parts:
            raise ValueError(
                f"d_ff={d_ff} does not divide among experts.experts_per_token={self.experts_per_token} and "
                f"experts.shared_experts={self.shared_experts}, which share it; give a multiple such as "
                f"d_ff={-(-d_ff // parts) * parts}"
            )
        return d_ff // parts

    def capacity(self, num_tokens: int) -> int | None:
        """C, how many tokens an expert takes at most; None: all."""
        if self.capacity_factor is None:
            return None
        return math.ceil(self.capacity_factor * num_tokens * self.experts_per_token / self.num_experts)

    def architecture(self) -> dict[str, int | float | str | None]:
        """The settings that decide what function it is: all but how its products are computed."""
        return {name: value for name, value in asdict(self).items() if name != "expert_product"}
