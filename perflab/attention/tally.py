"""Summarises many verdicts: how many cases are wrong, the likely causes, what fails always and what never."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from perflab.units import format_count

# With fewer cases of a level "all of them" is a matter of chance.
FEWEST = 4
MOST_NAMED = 5
TELLING = 1.4
"""A level that is always wrong is named if cases of other levels are right this many times as often as all cases."""


def tally(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines for a reader about the results that `hold` noted for each case; none if every case is right."""
    lines: list[str] = []
    for candidate in dict.fromkeys(result["candidate"] for result in results):
        own = [result for result in results if result["candidate"] == candidate]
        wrong = [result for result in own if result["text"]]
        if not wrong:
            continue
        lines.append(f"{candidate}: wrong in {len(wrong)} of {format_count(len(own), 'case')}")
        causes = Counter(cause for result in wrong for cause in set(_causes(result["text"])))
        for cause, count in causes.most_common(MOST_NAMED):
            lines.append(f"  {count:4} x {cause}")
        silent = sum(not _causes(result["text"]) for result in wrong)
        if silent and causes:
            lines.append(f"  {silent:4} x no known cause")
        lines += [f"  {line}" for line in _what_they_share(own)]
        smallest = min(wrong, key=lambda result: int(result["levels"]["n_q"]) * int(result["levels"]["n_k"]))
        lines.append(f"  the smallest: {smallest['case']}")
    return lines


def _causes(text: str) -> list[str]:
    """Return the causes that a verdict names, without their shares."""
    found, lines = [], text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("likely cause: "):
            words = [line.removeprefix("likely cause: ")]
            for later in lines[number + 1 :]:
                if not later.startswith("  "):
                    break
                words.append(later.strip())
            found.append(" ".join(words).partition(" (explains ")[0])
    return found


def _what_they_share(own: Sequence[Mapping[str, Any]]) -> list[str]:
    counts: dict[tuple[str, str], list[int]] = {}
    for result in own:
        for item in result["levels"].items():
            counts.setdefault(item, [0, 0])[bool(result["text"])] += 1
    enough = {item: pair for item, pair in counts.items() if sum(pair) >= FEWEST}
    always = [item for item, (right, wrong) in enough.items() if wrong and not right]
    lines = []
    for factor in dict.fromkeys(factor for factor, _ in always):
        levels = [level for name, level in always if name == factor]
        others = [pair for (name, level), pair in enough.items() if name == factor and level not in levels]
        if others:
            # Where nearly everything is wrong, some level is always wrong by chance.
            right = sum(pair[0] for pair in others) / sum(sum(pair) for pair in others)
            if right > TELLING * sum(not result["text"] for result in own) / len(own):
                lines.append(f"always wrong: {factor} {', '.join(levels)} (of other levels {right:.0%} are right)")
    never = [f"{factor} {level}" for (factor, level), (right, wrong) in enough.items() if right and not wrong]
    if never and len(never) <= MOST_NAMED:
        lines.append(f"never wrong: {', '.join(never)}")
    return lines
