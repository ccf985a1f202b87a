"""What plugins cost a run that has nothing of theirs: ``make startup``, or ``python -m tests.perf.startup [ROUNDS]``.

Each run is one empty test in an empty project, with no plugin beside pytest's own but one. Its processor time, user and
system, is read when it has ended. Runs take turns, so that what else goes on here meets all of them. Two numbers are
shown for each plugin: the median difference to the run of the same round without any, and the difference of the
fastest runs, which a busy machine disturbs least. Where a processor's counter is there, so is the median difference of
instructions, which a busy machine does not disturb. An empty module is among them: looking for a plugin that ``-p``
names costs something too. It is a measurement and no test: times depend on the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles

from perflab.instruments import count_events

PLUGINS = ("", "empty_plugin", "perflab.plugin", "xdist.plugin", "pytest_benchmark.plugin", "syrupy")
ROUNDS = 15


def cost(plugin: str, folder: Path) -> tuple[float, int | None]:
    """Processor time in ms and instructions of one run of pytest with the plugin; without any if the name is empty."""
    spent_ms: list[float] = []
    instructions = count_events(lambda: spent_ms.append(processor_ms(plugin, folder)))
    return spent_ms[0], instructions


def processor_ms(plugin: str, folder: Path) -> float:
    """Processor time of such a run."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = [str(folder), os.environ.get("PYTHONPATH", "")]
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.pathsep.join(filter(None, path))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(["-p", plugin] if plugin else [])]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.stdout is not None
    with process.stdout as said:
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{said.read().decode()}")
    return (used.ru_utime + used.ru_stime) * 1e3


def main(rounds: int) -> None:
    """Measure, and print a line for each plugin."""
    with tempfile.TemporaryDirectory(prefix="perflab-") as name:
        folder = Path(name)
        (folder / "test_one.py").write_text("def test_one():\n    pass\n", encoding="utf-8")
        (folder / "empty_plugin.py").touch()
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        spent: dict[str, list[float]] = {plugin: [] for plugin in PLUGINS}
        counted: dict[str, list[int]] = {plugin: [] for plugin in PLUGINS}
        for plugin in PLUGINS:
            processor_ms(plugin, folder)  # so that its modules are compiled
        for number in range(rounds):
            for at in range(len(PLUGINS)):
                plugin = PLUGINS[(at + number) % len(PLUGINS)]
                time_ms, instructions = cost(plugin, folder)
                spent[plugin].append(time_ms)
                counted[plugin] += [instructions] if instructions is not None else []
    print(f"processor time of a run of one empty test, {rounds} rounds: without plugins {median(spent['']):.0f} ms")
    print(f"{'more with it':24}     median   half of the rounds      fastest   instructions")
    for plugin in PLUGINS[1:]:
        more = [with_it - without for with_it, without in zip(spent[plugin], spent[""], strict=True)]
        low, _, high = quantiles(more, n=4)
        fastest = min(spent[plugin]) - min(spent[""])
        text = f"{plugin:24} {median(more):+7.1f} ms   {low:+7.1f} to {high:+6.1f}   {fastest:+7.1f} ms"
        if all(len(each) == rounds for each in counted.values()):
            text += f"   {(median(counted[plugin]) - median(counted[''])) / 1e6:+10.1f} M"
        print(text)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
