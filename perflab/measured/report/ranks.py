"""What differs between the ranks of a case that runs in several processes: a line below its row, and a table. Pure."""

from __future__ import annotations

from perflab.results.measurement import RankFigures, Record
from perflab.tables.contents import Table, first_rows
from perflab.units import format_bytes, format_count, format_ns

_SKEW_FROM = 0.02
"""The least difference between the ranks' times that the line mentions, as a share of the fastest rank's."""


def ranks_facts(record: Record) -> list[str]:
    """Return the differences between the ranks, each as a short text; nothing for a case in one process."""
    ranks = record.measurement.ranks if record.measurement is not None else []
    if not ranks:
        return []
    told = []
    fastest, slowest = min(one.median_ns for one in ranks), max(one.median_ns for one in ranks)
    if slowest >= (1.0 + _SKEW_FROM) * fastest:
        told.append(f"ranks {format_ns(fastest)} to {format_ns(slowest)} (skew {slowest / fastest - 1.0:.0%})")
    peaks = [one.peak_bytes for one in ranks if one.peak_bytes is not None]
    if len(set(peaks)) > 1:
        told.append(f"peak of a rank {format_bytes(min(peaks))} to {format_bytes(max(peaks))}")
    for name in ranks[0].counts:
        values = [one.counts[name] for one in ranks]
        told.append(f"{name.replace('_', ' ')} of a rank {min(values):,} to {max(values):,}")
    if record.lacks_cores:
        told.append(f"{record.num_ranks} ranks on {format_count(record.environment.cores, 'core')}: time is not judged")
    return told


def ranks_table(record: Record) -> list[Table]:
    """Return the figures of each rank as a table; nothing for a case in one process."""
    ranks = record.measurement.ranks if record.measurement is not None else []
    if not ranks:
        return []
    names = list(ranks[0].counts)
    columns = [("rank", "count"), ("median", "ns"), ("peak", "bytes"), *((name, "count") for name in names)]
    return [first_rows("ranks", "Each rank by itself", columns, list(map(_row, range(len(ranks)), ranks)), len(ranks))]


def _row(rank: int, one: RankFigures) -> list[str | float | int | None]:
    return [rank, one.median_ns, one.peak_bytes, *one.counts.values()]
