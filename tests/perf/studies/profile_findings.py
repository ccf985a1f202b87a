"""What the profiles of the study come to: categories side by side, and the questions that people ask. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import hypot
from textwrap import wrap

from perflab import Profile, ProfileRow, Result
from perflab.units import format_count, format_flops, format_ns, format_signed

from .recommendation import result_parameters

_BAR = 40
"""Characters of a bar that stands for a whole call."""
_SYMBOLS = "█▓▒░#=+-:.oxX*%"
_COLUMN = 8
"""Width of a way's column: five of them, and the categories, fit into 80."""
_PRODUCTS = ("products forward", "products backward")
_GAPS = ("python", "host wait", "launches", "kernel wait")
"""Categories without operators: their time says all there is to say."""
_SPREADS, _OWN_SHARE, _CALL_SHARE = 4.0, 0.1, 0.01
"""Standard deviations from call to call, share of a category's own time, and of the call's, that its change exceeds."""
_FLOPS_A_NUMBER = 5
"""Of softmax: a maximum, a difference, an exponential, a sum and a division."""

Profiles = Mapping[tuple[str, str], tuple[Profile, float]]
"""By mode and way: the profile, and the timer's median before it."""


def profile_findings(results: Sequence[Result]) -> list[str]:
    """A breakdown for each way to compute, beside each other; then an answer for each question."""
    found: dict[tuple[str, str], tuple[Profile, float]] = {}
    for one in results:
        record = one.record
        if record is None or record.summary is None or record.measurement is None or record.measurement.profile is None:
            continue
        parameters = result_parameters(one)
        key = (str(parameters["mode"]), str(parameters["how"]))
        found[key] = (record.measurement.profile, record.summary.median_ns)
    lines: list[str] = []
    for mode in dict.fromkeys(mode for mode, _ in found):
        lines += _side_by_side(mode, {how: profile for (other, how), (profile, _) in found.items() if other == mode})
    return lines + [line for ask in (_timer, _most, _products, _launches, _softmax, _changes) for line in ask(found)]


def _side_by_side(mode: str, profiles: Mapping[str, Profile]) -> list[str]:
    """A table of shares, and a bar for each way, as long as its time."""
    names = list(dict.fromkeys(row.category for one in profiles.values() for row in one.rows))
    times = {how: _by(one, lambda row: row.category) for how, one in profiles.items()}
    names.sort(key=lambda name: -max(of.get(name, 0.0) for of in times.values()))
    symbols = dict(zip(names, _SYMBOLS, strict=False))
    width = max(len(how) for how in profiles)
    longest = max(max(one.whole_ns, one.explained_ns) for one in profiles.values())
    lines = [f"{mode}, time of one call by category ({' '.join(f'{symbols[name]} {name}' for name in names)}):"]
    for how, one in profiles.items():
        bar = "".join(symbols[name] * round(_BAR * times[how].get(name, 0.0) / longest) for name in names)
        lines.append(f"  {how.ljust(width)} {bar} {format_ns(one.timer_ns)}")
    label = max(map(len, (*names, "unexplained")))
    rows = {name: [times[how].get(name, 0.0) for how in profiles] for name in names}
    rows["unexplained"] = [one.unexplained_ns for one in profiles.values()]
    rows["one call"] = [one.whole_ns for one in profiles.values()]  # what the rows above add up to
    heads = [wrap(how, _COLUMN, break_long_words=False) for how in profiles]
    deep = max(map(len, heads))
    table = [("", row) for row in zip(*([""] * (deep - len(head)) + head for head in heads), strict=True)]
    for name, times_ns in rows.items():
        table.append((name, tuple(f"{'-' * (one < 0)}{format_ns(abs(one))}" if one else "–" for one in times_ns)))
    sizes = [max(_COLUMN, *(len(cells[at]) for _, cells in table)) for at in range(len(profiles))]
    for name, cells in table:
        told = "  ".join(cell.rjust(size) for cell, size in zip(cells, sizes, strict=True))
        lines.append(f"  {name.ljust(label)}  {told}".rstrip())
    return lines


def _timer(found: Profiles) -> list[str]:
    """Does the profiler's total agree with the timer?"""
    if not found:
        return []
    off = sorted(abs(one.unexplained_ns) / one.timer_ns for one, _ in found.values())
    since = sorted(abs(one.timer_ns / median_ns - 1) for one, median_ns in found.values())
    return [
        f"the rows differ from the timer between them by {_percent(off[len(off) // 2])} (median), "
        f"{_percent(off[-1])} at most; that timer from the samples before by {_percent(since[len(since) // 2])}"
    ]


def _most(found: Profiles) -> list[str]:
    """Which operator takes most time, and how often it runs, in forward alone and in a training step?"""
    lines = []
    for (mode, how), (one, _) in found.items():
        times = _by(one, _name)
        if not times:
            continue
        name = max(times, key=lambda other: times[other])
        often = sum(row.instances for row in one.rows if _name(row) == name)
        share = times[name] / one.timer_ns
        lines.append(f"{mode}, {how}: {name} takes most, {_percent(share)} in {often:.0f} calls")
    return lines


def _products(found: Profiles) -> list[str]:
    """Share of matrix products in inference and in a training step."""
    lines = []
    for how in dict.fromkeys(how for _, how in found):
        profiles = {mode: one for (mode, other), (one, _) in found.items() if other == how}
        told = [
            f"{_percent(sum(row.time_ns for row in one.rows if row.category in _PRODUCTS) / one.timer_ns)} of {mode}"
            for mode, one in profiles.items()
        ]
        lines.append(f"matrix products with weights, {how}: {', '.join(told)}")
    return lines


def _launches(found: Profiles) -> list[str]:
    """What launching costs: on a GPU the time in which it waits for the host, on a CPU dispatch and Python."""
    lines = []
    for (mode, how), (one, _) in found.items():
        times = _by(one, lambda row: row.category)
        names = ("host wait", "launches") if one.device == "cuda" else ("dispatch", "python")
        told = [f"{name} {_percent(times.get(name, 0.0) / one.whole_ns)}" for name in names]
        launches = [call for call in one.cuda_calls if "Launch" in call.name]
        if launches:
            many = format_count(round(sum(call.instances for call in launches)), "launch")
            told.append(f"{many} take the host {format_ns(sum(call.time_ns for call in launches))}")
        lines.append(f"{mode}, {how}: {', '.join(told)}")
    return lines


def _softmax(found: Profiles) -> list[str]:
    """Softmax against the two products inside of written-out attention, in time and in FLOPs."""
    lines = []
    for (mode, how), (one, _) in found.items():
        inside = [row for row in one.rows if row.category == "attention"]
        softmax = [row for row in inside if row.operator in ("aten::_softmax", "aten::_softmax_backward_data")]
        products = [row for row in inside if row.operator in ("aten::bmm", "aten::baddbmm")]
        if not softmax or not products:
            continue
        work = _FLOPS_A_NUMBER * sum(_elements(row) * row.instances for row in softmax)
        times = [sum(row.time_ns for row in some) for some in (softmax, products)]
        flops = sum(row.flops for row in products)
        lines.append(
            f"{mode}, {how}: softmax takes {format_ns(times[0])} beside {format_ns(times[1])} of the products in "
            f"attention ({times[0] / times[1]:.2f}), and about {format_flops(round(work))} beside "
            f"{format_flops(flops)} ({work / flops:.3f}), counting {_FLOPS_A_NUMBER} FLOPs for each number"
        )
    return lines


def _changes(found: Profiles) -> list[str]:
    """What changes with bf16, with SDPA, with torch.compile: the categories that save and cost most."""
    lines = []
    pairs = (
        ("written out", "written out, bf16"),
        ("written out", "SDPA"),
        ("SDPA", "SDPA, bf16"),
        ("SDPA", "compiled"),
    )
    for mode in dict.fromkeys(mode for mode, _ in found):
        for base, head in pairs:
            if (mode, base) not in found or (mode, head) not in found:
                continue
            before, now = found[mode, base][0], found[mode, head][0]
            moved = sorted(_moved(before, now).items(), key=lambda one: one[1])
            most = [one for one in moved[:1] if one[1] < 0] + [one for one in moved[-1:] if one[1] > 0]
            told = [f"{name} {format_signed(change_ns, format_ns)}" for name, change_ns in most]
            whole = format_signed(now.timer_ns - before.timer_ns, format_ns)
            lines.append(f"{mode}, {base} -> {head}: {whole}; {', '.join(told) or 'no category beyond the noise'}")
    return lines


def _moved(before: Profile, now: Profile) -> dict[str, float]:
    """By how much categories changed in which other work is done, if it is more than calls differ by themselves."""
    moved = {}
    for name in dict.fromkeys(row.category for one in (before, now) for row in one.rows):
        old, new = ([row for row in one.rows if row.category == name] for one in (before, now))
        old_ns, new_ns = (sum(row.time_ns for row in rows) for rows in (old, new))
        spread_ns = hypot(*(row.spread_ns for row in (*old, *new)))
        noise_ns = max(_SPREADS * spread_ns, _OWN_SHARE * old_ns, _CALL_SHARE * before.whole_ns)
        if abs(new_ns - old_ns) > noise_ns and (name in _GAPS or _work(old) != _work(new)):
            moved[name] = new_ns - old_ns
    return moved


def _work(rows: Sequence[ProfileRow]) -> Counter[tuple[str, str]]:
    """Operators on their shapes, and how often: the same code launches other kernels in another precision alone."""
    found: Counter[tuple[str, str]] = Counter()
    for row in rows:
        found[row.operator, row.shapes] += round(row.instances)
    return found


def _elements(row: ProfileRow) -> int:
    """Numbers in the first input: ``16x128x128, ... float32``."""
    first = row.shapes.split(",")[0].split(" ")[0]
    count = 1
    for size in first.split("x"):
        count *= int(size) if size.isdecimal() else 1
    return count


def _name(row: ProfileRow) -> str:
    return row.kernel or row.operator


def _by(profile: Profile, name_of: Callable[[ProfileRow], str]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for row in profile.rows:
        if name_of(row):
            sums[name_of(row)] += row.time_ns
    return dict(sums)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
