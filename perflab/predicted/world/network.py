"""Networks between GPUs, and the least time that collectives take on them. Pure.

A bound counts the bytes that have to pass one GPU's link within its node, and one GPU's share of its node's ports, and
takes the longer. S is the size of the larger side of a rank's tensors, n the ranks of the group, N the nodes that they
are on, g the ranks of the group in a node:

====================== ============================ =========================
collective             within the node              between nodes
====================== ============================ =========================
all_reduce             2 (n - 1)/n S / link         2 (N - 1)/N S / (g port)
all_gather,            (n - 1)/n S / link           (N - 1)/N S / (g port)
reduce_scatter
all_to_all             (n - 1)/n S / link           (n - g)/n S / port
broadcast, reduce,     S / link                     S / (g port)
others
====================== ============================ =========================

They are nccl-tests' bus bandwidths, and for a group on several nodes what any algorithm has to bring into a node, where
all its ports share the work. Latencies, which grow with n, are left out: NCCL's own tuning tables, and PyTorch's copy
of them (``torch._inductor.comm_analysis``), estimate a time, are of three architectures, and take a group for one that
fills nodes of eight; what they add is no bound.

Ranks are numbered node by node. The links are those within a node, one direction: NVLink where a board can have it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from perflab.measure.counts.collectives import Collective
from perflab.predicted.data_sheets import DataSheet
from perflab.results.predicted import Communication, Exchanged
from perflab.results.profile import BACKWARD

_NS_PER_S = 1e9
_GBPS = 1e9 / 8
_PCIE3, _PCIE4, _PCIE5 = 15.75e9, 31.5e9, 63.0e9
"""Bytes per second and direction of 16 lanes: 8, 16 and 32 GT/s, of which 128 bits in 130 are data."""
LINKS: Mapping[str, float] = MappingProxyType(
    {
        # Half of what the sheets print, which is both directions: "NVLink: 900 GB/s" of an H100 SXM is 450 each way.
        "v100-32gb": 150e9,
        "a100-40gb": 300e9,
        "a100-80gb": 300e9,
        "h100": 450e9,
        "h200": 450e9,
        "b200": 900e9,
        "h100-pcie": 300e9,  # over a bridge between two boards
        "rtx3090": 56.25e9,  # over a bridge between two boards
        "t4": _PCIE3,
        "a10": _PCIE4,
        "l4": _PCIE4,
        "l40s": _PCIE4,
        "rtx4090": _PCIE4,
        "rtx5090": _PCIE5,
        "mi300x": 448e9,  # seven links of 64 GB/s
        "mi355x": 537.6e9,  # seven links of 76.8 GB/s
    }
)
"""Bytes per second that a GPU sends at most to others of its node, by the name of its data sheet."""


@dataclass(frozen=True)
class Network:
    """How nodes are connected."""

    name: str
    gpus_per_node: int
    port_bytes_per_s: float
    """The bytes per second and direction that a node's ports move for each of its GPUs."""
    source: str = ""


NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        one.name: one
        for one in (
            Network("dgx-a100", 8, 200 * _GBPS, "NVIDIA DGX A100 data sheet: eight ports of 200 Gb/s"),
            Network("dgx-h100", 8, 400 * _GBPS, "NVIDIA DGX H100 data sheet: eight ports of 400 Gb/s"),
            Network("dgx-b200", 8, 400 * _GBPS, "NVIDIA DGX B200 data sheet: eight ports of 400 Gb/s"),
            Network("p4d", 8, 50 * _GBPS, "Amazon EC2 P4d: 400 Gb/s for eight A100"),
            Network("p5", 8, 400 * _GBPS, "Amazon EC2 P5: 3,200 Gb/s for eight H100"),
        )
    }
)
"""Networks by name."""
_OWN = re.compile(r"(\d+)x(\d+(?:\.\d+)?)")


def parse_network(text: str) -> Network:
    """Return a network by its name, or from ``8x400``: eight GPUs a node, and 400 Gb/s for each of them.

    Raises:
        ValueError: the text is neither; the message lists the names.
    """
    known = NETWORKS.get(text.strip().lower())
    if known is not None:
        return known
    own = _OWN.fullmatch(text.strip())
    if own is None or not int(own[1]) or not float(own[2]):
        raise ValueError(
            f"{text!r} is no network: {', '.join(NETWORKS)}, or GPUs a node and Gb/s for each of them, 8x400"
        )
    return Network(text.strip(), int(own[1]), float(own[2]) * _GBPS)


def communication_on(network: Network, collectives: Sequence[Collective], gpu: DataSheet) -> Communication | None:
    """Return what a rank's collectives take at least; None if the GPU's link within a node is not known."""
    link = LINKS.get(gpu.name)
    if link is None:
        return None
    sent, by_kind = 0.0, defaultdict[str, float](float)
    for one in collectives:
        ranks = one.ranks if one.peer is None else (one.ranks[0], one.peer)
        nodes = len({rank // network.gpus_per_node for rank in ranks})
        times, within, between = _shares(one.kind, len(ranks), nodes)
        sent += times * within * one.size_bytes
        by_link = within / link if nodes < len(ranks) else 0.0
        by_port = between / network.port_bytes_per_s if nodes > 1 else 0.0
        by_kind[one.kind] += times * one.size_bytes * max(by_link, by_port) * _NS_PER_S
    return Communication(
        network=network.name, sent_bytes=round(sent), bound_ns=sum(by_kind.values()), by_kind=dict(by_kind)
    )


def exchanged_by_line(collectives: Sequence[Collective]) -> list[Exchanged]:
    """Sum collectives up by kind, dtype and line, those of most bytes first."""
    calls, size_bytes = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for one in collectives:
        key = one.kind, one.dtype, one.line or BACKWARD
        calls[key] += 1
        size_bytes[key] += one.size_bytes
    return [
        Exchanged(kind=kind, dtype=dtype, line=line, calls=calls[kind, dtype, line], size_bytes=size)
        for (kind, dtype, line), size in size_bytes.most_common()
    ]


def _shares(kind: str, n: int, nodes: int) -> tuple[int, float, float]:
    """Return how often a collective passes the network, and its shares of S within a node and between nodes."""
    if n < 2 or kind == "barrier":
        return 0, 0.0, 0.0
    together = n / nodes
    between = (nodes - 1) / nodes / together
    if kind == "all_reduce":
        return 2, (n - 1) / n, between
    if kind in ("all_gather", "reduce_scatter"):
        return 1, (n - 1) / n, between
    if kind == "all_to_all":
        return 1, (n - 1) / n, (n - together) / n
    return 1, 1.0, 1 / together
