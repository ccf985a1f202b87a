"""The factors of an attention case, and the cases that a candidate's claims call for.

Shapes: q (B, H, N_q, D); k, v (B, H_kv, N_k, D). A case is data: its levels are chosen here, its tensors are drawn in
`tensors`, and `hold` runs the case.

Every pair of levels of all factors occurs (see `covering`), except pairs of N_q and N_k, since 13 x 13 rows would be
too many: instead every length occurs on both sides with a shorter, an equal and a longer length on the other side. A
candidate that does not claim a level has a covering array of its own without that level, so that no other pair is lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from perflab.correctness.budget import MIN_PLAIN_ROWS
from perflab.correctness.covering import Level, Pair, cover
from perflab.correctness.operator import DTYPES, LAYOUTS, UPSTREAMS
from perflab.correctness.verify import MAX_PLAIN_DRAWS
from perflab.lab.attention.registry import FEATURES

LENGTHS = (1, 2, 3, 17, 97, 113, 128, 203, 239, 512, 799, 1023, 1024)
HEAD_DIMS = (16, 32, 40, 59, 64, 80, 96, 128, 192, 256)
MASKS: Mapping[str, Mapping[str, Any]] = {
    "full": {},
    "causal": {"is_causal": True},
    "bottomright": {"is_causal": True, "causal_alignment": "bottom-right"},
    "window": {"window_size": (19, 7)},
    "causalwindow": {"is_causal": True, "window_size": (33, -1)},
    "bottomrightwindow": {"window_size": (5, 40), "causal_alignment": "bottom-right"},
    "sinks": {"is_causal": True, "window_size": (19, -1), "sinks": 5},
    "bottomrightsinks": {"window_size": (11, 7), "causal_alignment": "bottom-right", "sinks": 37},
}
SOFTCAPS = {"": None, "softcap3": 3.0, "softcap20": 20.0}
HEADS = {"h1:1": (1, 1), "h3:3": (3, 3), "h4:2": (4, 2), "h6:1": (6, 1)}
GROUPED = tuple(name for name, (q, kv) in HEADS.items() if q != kv)
SCALES = {"": None, "scale0.37": 0.37, "scale1": 1.0, "scale-0.2": -0.2}
DATA = ("", "large", "peaked", "constant")
GRADIENTS = ("", "gboth", "glse")
"""Outputs that get an upstream gradient: out; out and log-sum-exp; the log-sum-exp alone."""
RELATIONS = ("shorter", "equal", "longer")

TINY, LONG = (1, 2, 3), 512
# Most elements that a case may touch on a CPU: those of 1024 x 1024 and head dimension 256, about a second.
MOST_ELEMENTS = 10_000_000
# In Triton's interpreter a tile of 32 x 32 costs some 50 ms, and a head a quarter of a second, both runs.
MOST_INTERPRETED_TILES, MOST_INTERPRETED_HEADS = 32, 6


@dataclass(frozen=True, slots=True)
class Case:
    """One case: a level of each factor, by the level's name."""

    n_q: int
    n_k: int
    head_dim: int
    dtype: str
    mask: str = "full"
    softcap: str = ""
    heads: str = "h1:1"
    batch: int = 1
    scale: str = ""
    layout: str = ""
    data: str = ""
    upstream: str = ""
    gradients: str = ""
    relation: str = ""

    def __str__(self) -> str:
        batch = f"b{self.batch}" if self.batch > 1 else ""
        levels = (self.mask, self.softcap, self.scale, self.heads, batch, self.layout, self.data, self.upstream)
        parts = (f"q{self.n_q}", f"k{self.n_k}", f"d{self.head_dim}", self.dtype, *levels, self.gradients)
        return "-".join(part for part in parts if part)

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments of the call of attention; arguments at their default are left out."""
        asked = dict(MASKS[self.mask]) | {"softcap": SOFTCAPS[self.softcap], "scale": SCALES[self.scale]}
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def shapes(self) -> dict[str, tuple[int, int, int, int]]:
        """Shapes of q, k and v: {"q": (B, H, N_q, D), ...}."""
        heads, kv_heads = HEADS[self.heads]
        kv = (self.batch, kv_heads, self.n_k, self.head_dim)
        return {"q": (self.batch, heads, self.n_q, self.head_dim), "k": kv, "v": kv}

    @property
    def levels(self) -> dict[str, str]:
        """Levels {factor: level} as text, plain ones included, to tell what failing cases have in common."""
        return {field.name: str(getattr(self, field.name)) or "plain" for field in fields(self)}


@dataclass(frozen=True, slots=True)
class Claims:
    """The capabilities of a candidate, which decide its cases.

    features      a subset of the registry's FEATURES, and "scale": any scale other than 1 / sqrt(D)
    lengths       the numbers of queries and of keys that cases have
    is_causal     "bottom-right" if `is_causal` means that alignment, and no other is available
    gradients     whether the candidate can be differentiated; lse_gradients: through its log-sum-exp too
    negative_scale, grouped_16_bit, one_query_16_bit: False leaves out the cases of a known defect of PyTorch's
    on_cpu        long lengths are expensive on a CPU: each occurs with each dtype and relation, but not with every
                  level of other factors
    interpreted   the kernels run in Triton's interpreter: cases are small, and no pair with a long length is needed
    few           every level occurs, not every pair: each case costs seconds (a compilation, say)
    """

    dtypes: tuple[str, ...] = tuple(DTYPES)
    features: frozenset[str] = frozenset((*FEATURES, "scale"))
    head_dims: tuple[int, ...] = HEAD_DIMS
    lengths: tuple[int, ...] = LENGTHS
    is_causal: str = "top-left"
    gradients: bool = True
    lse_gradients: bool = True
    negative_scale: bool = True
    grouped_16_bit: bool = True
    one_query_16_bit: bool = True
    on_cpu: bool = False
    interpreted: bool = False
    few: bool = False


def feature_of_mask(name: str) -> frozenset[str]:
    """Return the FEATURES that a mask asks for."""
    asked = MASKS[name]
    found = {"causal"} if asked.get("is_causal") else set()
    found |= {"window"} if "window_size" in asked else set()
    found |= {"sinks"} if "sinks" in asked else set()
    found |= {"bottom-right"} if "causal_alignment" in asked else set()
    return frozenset(found)


def factors_for(claims: Claims) -> dict[str, tuple[Level, ...]]:
    """Return the levels of each factor that these claims call for."""
    features = claims.features
    masks = [name for name in MASKS if feature_of_mask(name) <= features]
    if claims.is_causal == "bottom-right":  # the causal mask is aligned so; with equal lengths both alignments are one
        masks = [
            name for name in masks if "causal" not in feature_of_mask(name) or "bottom-right" in feature_of_mask(name)
        ]
    scales = [name for name, scale in SCALES.items() if not name or "scale" in features]
    return {
        "n_q": claims.lengths,
        "n_k": claims.lengths,
        "head_dim": claims.head_dims,
        "dtype": claims.dtypes,
        "mask": tuple(masks),
        "softcap": tuple(name for name in SOFTCAPS if not name or "softcap" in features),
        "heads": tuple(name for name, (q, kv) in HEADS.items() if q == kv or "grouped-heads" in features),
        "batch": (1, 2, 3),
        "scale": tuple(name for name in scales if claims.negative_scale or "-" not in name),
        "layout": tuple(LAYOUTS),
        "data": DATA,
        "upstream": UPSTREAMS if claims.gradients else ("",),
        "gradients": GRADIENTS if claims.lse_gradients else ("",),
        "relation": RELATIONS,
    }


@lru_cache
def cases_for(claims: Claims) -> tuple[Case, ...]:
    """Return the covering array of cases, shortest first. Equal claims always have the same cases."""
    factors = factors_for(claims)

    def valid(row: Mapping[str, Any]) -> bool:
        return _affordable(row, claims)

    def wanted(pair: Pair) -> bool:
        if claims.few:
            return False
        (a, _), (b, _) = pair
        if {a, b} == {"n_q", "n_k"}:
            return False
        if claims.interpreted and ({a, b} & {"n_q", "n_k"}) and ({a, b} & {"head_dim", "upstream", "layout"}):
            return False  # 60 rows more, of seconds each
        if claims.on_cpu and any(a in ("n_q", "n_k") and isinstance(n, int) and n >= LONG for a, n in pair):
            return not claims.interpreted and bool({a, b} & {"dtype", "relation"})
        return True

    rows = cover(factors, valid, wanted)
    cases = [Case(**row) for row in rows]  # type: ignore[arg-type]
    return tuple(sorted(cases, key=lambda case: (case.n_q * case.n_k, str(case))))


def _lengths(row: Mapping[str, Any], lengths: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the least N_q and N_k that a row, or a part of one, can have; None if its relation is impossible."""
    n_q, n_k, relation = row.get("n_q"), row.get("n_k"), row.get("relation")
    pairs = [
        (one, other)
        for one in (lengths if n_q is None else (n_q,))
        for other in (lengths if n_k is None else (n_k,))
        if relation is None or relation == ("shorter" if one < other else "equal" if one == other else "longer")
    ]
    return min(pairs, key=lambda pair: pair[0] * pair[1], default=None)


def _affordable(row: Mapping[str, Any], claims: Claims) -> bool:
    """Whether a row, or a part of one, is possible, hits no known defect, and is small enough to run."""
    lengths = _lengths(row, claims.lengths)
    if lengths is None:
        return False
    n_q, n_k = lengths
    is_16_bit = row.get("dtype", "fp32") != "fp32"
    if is_16_bit and not claims.grouped_16_bit and row.get("heads") in GROUPED:
        return False
    if is_16_bit and not claims.one_query_16_bit and row.get("softcap") and row.get("n_q") == 1:
        return False
    if row.get("layout") == "expanded" and row.get("heads") == "h1:1" and row.get("batch") == 1:
        return False  # there is nothing to expand
    copies = (HEADS[row["heads"]][0] if "heads" in row else 1) * row.get("batch", 1)
    if claims.interpreted:
        tiles = copies * -(-n_q // 32) * -(-n_k // 32)
        return bool(tiles <= MOST_INTERPRETED_TILES and copies <= MOST_INTERPRETED_HEADS)
    kv_copies = (HEADS[row["heads"]][1] if "heads" in row else 1) * row.get("batch", 1)
    rows = min(copies * n_q, kv_copies * n_k)
    draws = 2 + min(MAX_PLAIN_DRAWS, MIN_PLAIN_ROWS / rows)  # `verify` draws plain again where there are few rows
    elements = 4 * n_q * n_k + (n_q + n_k) * row.get("head_dim", HEAD_DIMS[0])
    return bool(draws * copies * elements <= MOST_ELEMENTS)
