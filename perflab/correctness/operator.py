"""An operator with a definition, declared once: every form (implementation) of it then goes through one suite.

    SCALED_SUM = Operator(
        "scaled_sum",
        definition=lambda x, weight: x @ weight,
        plain=lambda x, weight: (x * weight).sum(-1),
        inputs=lambda case, generator: {"x": randn(4, case["length"]), "weight": randn(case["length"])},
        factors={"length": (1, 63, 64, 65, 1000)},
    )

    @pytest.mark.parametrize("case", SCALED_SUM.cases(), ids=str)
    def test_my_kernel_is_right(case, device):
        SCALED_SUM.check(my_kernel, case, device)

Cases are a covering array of the operator's own factors and of COMMON: dtypes, layouts of inputs, layouts of upstream
gradients. A case runs as `verify` says: poisoned memory, fresh data in the same memory, inputs unchanged, gradients of
every floating input, each within its derived budget. Knows no operator, and not pytest.

Layouts are those in which tensors reach a kernel in practice. A tensor that is too small for a layout stays as it is.
An expanded tensor has other values: its first slice, over and over.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from torch import Tensor

from perflab.correctness.compare import Report
from perflab.correctness.covering import Level, cover
from perflab.correctness.diagnosis import Hypothesis, explained, wrapped
from perflab.correctness.run import Function
from perflab.correctness.verify import Magnitudes, expanded_ones, random_upstream, verify

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
UPSTREAMS = ("", "dones", "dtransposed", "doffset", "dcolumnwise")


def contiguous(x: Tensor) -> Tensor:
    """Return `x` in the layout of torch.empty."""
    return x.contiguous()


def transposed(x: Tensor) -> Tensor:
    """Return `x` in the layout that a projection leaves: (B, N, H, D) in memory, seen as (B, H, N, D)."""
    return x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() > 2 else x.contiguous()


def offset(x: Tensor) -> Tensor:
    """Return `x` as a view of a larger tensor, with an offset, and with gaps after each row and head."""
    *outer, rows, columns = (1, *x.shape) if x.dim() < 2 else x.shape
    larger = torch.zeros(*outer, rows + 3, columns + 5, dtype=x.dtype, device=x.device)
    view = larger[..., 2:-1, 4:-1].view(x.shape) if x.dim() < 2 else larger[..., 2:-1, 4:-1]
    view.copy_(x)
    return view


def expanded(x: Tensor) -> Tensor:
    """Return the first head of `x` for all heads, with stride 0; if there is one head, the first batch for all."""
    if x.dim() < 2:
        return x.contiguous()
    dimension = 1 if x.dim() > 2 and x.shape[1] > 1 else 0
    return x.narrow(dimension, 0, 1).expand(x.shape)


def columnwise(x: Tensor) -> Tensor:
    """Return `x` with its last two dimensions exchanged in memory: columns are contiguous."""
    return x.mT.contiguous().mT if x.dim() > 1 else x.contiguous()


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "": contiguous,
    "transposed": transposed,
    "offset": offset,
    "expanded": expanded,
    "columnwise": columnwise,
}


def upstream_in(layout: str) -> Callable[[Tensor, int], Tensor]:
    """Return upstream(output, seed) -> a gradient for the output.

    The layout is `dones`, the gradient of `output.sum()`; or "d" and the name of a layout, for a random gradient.
    """
    if layout == "dones":
        return expanded_ones
    return lambda output, seed: LAYOUTS[layout.removeprefix("d")](random_upstream(output, seed))


COMMON: Mapping[str, Sequence[Level]] = {"dtype": tuple(DTYPES), "layout": tuple(LAYOUTS), "upstream": UPSTREAMS}
"""Factors of every operator; `Operator.factors` and `Operator.cases` may give these factors other levels."""


@dataclass(frozen=True)
class OperatorCase:
    """One case: a level of each factor, by name: case["length"]."""

    levels: Mapping[str, Any]

    def __getitem__(self, factor: str) -> Any:
        return self.levels[factor]

    def __str__(self) -> str:
        named = ((name, level) for name, level in self.levels.items() if level not in ("", None, False))
        return "-".join(
            level if isinstance(level, str) else name if level is True else f"{name}{level}" for name, level in named
        )


@dataclass(frozen=True)
class Operator:
    """The definition of an operator, and the cases in which a form is compared with it.

    All functions are called by parameter names.

    name         the operator's name in a verdict
    definition   the specification: float64 in, float64 out; a tensor, or one for each of `outputs`
    plain        the definition's mathematics step by step in the inputs' dtype; plain's error makes the budgets
    inputs       inputs(case, generator) -> {parameter: tensor}, contiguous float32 (bool, integers); they are cast to
                 the case's dtype and laid out as the case says. Optional inputs are left out where a case has none
    factors      {factor: levels}, beside COMMON
    outputs      names of the returned tensors, in order
    gradient_of  outputs that get an upstream gradient; None for all
    settings     settings(case) -> keyword arguments that are no tensors
    wide         inputs that stay float32 in every dtype
    valid        valid(levels): whether a row of factors, or a part of one, is allowed
    magnitudes   magnitudes(**inputs, upstream=, **settings), for results in which larger terms cancel (see `verify`)
    hypotheses   faults that a wrong result is compared with (see `diagnosis`)
    dimensions   names of the dimensions of each result, for hints
    """

    name: str
    _: KW_ONLY
    definition: Function
    plain: Function
    inputs: Callable[[OperatorCase, torch.Generator], Mapping[str, Tensor]]
    factors: Mapping[str, Sequence[Level]] = field(default_factory=dict)
    outputs: Sequence[str] = ("out",)
    gradient_of: Sequence[str] | None = None
    settings: Callable[[OperatorCase], Mapping[str, Any]] = lambda case: {}
    wide: Sequence[str] = ()
    valid: Callable[[Mapping[str, Any]], bool] = lambda levels: True
    magnitudes: Magnitudes | None = None
    hypotheses: Sequence[Hypothesis] = ()
    dimensions: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def cases(self, **levels: Sequence[Level]) -> tuple[OperatorCase, ...]:
        """Return the covering array of cases.

        `levels` replace the levels of a factor, for a form that claims less: dtype=("fp32",). ValueError for an unknown
        factor.
        """
        factors = {**COMMON, **self.factors}
        unknown = [name for name in levels if name not in factors]
        if unknown:
            raise ValueError(f"{self.name} has no factor {unknown[0]!r}; its factors are {', '.join(factors)}")
        return tuple(OperatorCase(row) for row in cover(factors | levels, self.valid))

    def case(self, **levels: Level) -> OperatorCase:
        """Return the case with the given levels; a factor that is not given has its first level."""
        factors = {**COMMON, **self.factors}
        return OperatorCase({name: levels.get(name, of[0]) for name, of in factors.items()})

    def check(
        self, form: Function, case: OperatorCase, device: torch.device | str = "cpu", /, **settings: Any
    ) -> tuple[Report, ...]:
        """Compare a form with the definition in one case; `settings` are further keyword arguments of the form alone.

        AssertionError with a verdict: what is wrong, where, by how much, and the likely cause. The form's own
        exceptions pass through.
        """

        def make(seed: int) -> dict[str, Tensor]:
            drawn = self.inputs(case, torch.Generator(device).manual_seed(seed))
            return {name: self._laid_out(name, x, case) for name, x in drawn.items()}

        names = tuple(make(0))

        def by_name(function: Callable[..., Any], **more: Any) -> Callable[..., Any]:
            return lambda *tensors, **given: function(**dict(zip(names, tensors, strict=True)), **given, **more)

        try:
            return verify(
                by_name(form, **settings),
                make,
                reference=by_name(self.definition),
                plain=by_name(self.plain),
                magnitudes=None if self.magnitudes is None else by_name(self.magnitudes),
                outputs=self.outputs,
                gradient_of=self.outputs if self.gradient_of is None else self.gradient_of,
                upstream=upstream_in(case["upstream"]),
                settings=self.settings(case),
                explain=lambda evidence: explained(evidence, self.hypotheses, dimensions=self.dimensions),
            )
        except AssertionError as error:
            raise AssertionError(f"{wrapped(f'{self.name} is wrong for {case}')}\n{error}") from None

    def _laid_out(self, name: str, x: Tensor, case: OperatorCase) -> Tensor:
        if not x.is_floating_point():
            return x
        return LAYOUTS[case["layout"]](x if name in self.wide else x.to(DTYPES[case["dtype"]]))
