"""Phases of any names, and the generation of tokens, as a user measures and reads them."""

from __future__ import annotations

import json
import re

import pytest

from tests.plugin.conftest import REFUSED, Project

PHASES = """
from pathlib import Path
from conftest import Virtual

def spend(ms):
    Virtual.now_ns += 1_000_000 * ms

def start():
    spend(30)
    return "cache"

def go(cache):
    spend(int((Path(__file__).parent / "cost.txt").read_text().split()[0]))
    return cache + " used"

def test_serve(perf):
    perf.work(tokens=16, decode_tokens=8)
    perf.quote("elsewhere", seconds=0.1, decode=0.05)
    assert perf.phases(prefill=start, decode=go) == "cache used"
"""

GENERATION = """
import torch
from conftest import Virtual

def spend(ms):
    Virtual.now_ns += 1_000_000 * ms

lengths = [5] * 1000

def generate(hook):
    x = torch.ones(64)
    spend(40)
    x = x + 1
    hook()
    for number in range(lengths.pop() - 1):
        spend(10 if number % 2 else 20)
        x = x * 2 + 1
        hook()
    return x

def test_generate(perf):
    assert perf.generation(generate, batch=2).shape == (64,)
"""


def in_one_line(result: pytest.RunResult) -> str:
    """What was printed, without the ends of lines."""
    return " ".join(line.strip() for line in result.stdout.lines)


def test_a_slower_phase_of_any_name_is_named_and_has_its_columns_and_rates(project: Project) -> None:
    project.test_file.write_text(PHASES)
    project.cost(ms=80)
    columns = "--perf-columns=median, prefill, decode, decode_tokens/s"
    project.run("--perf-update", "--perf-replicates=2", columns).stdout.re_match_lines(
        [
            r"case +median +prefill +decode +decode tokens/s +verdict",
            r"serve +110 ms +30\.0 ms +80\.0 ms +100 +new, saved",
            r"  prefill 30\.0 ms · decode 80\.0 ms · .*145 tokens/s",
            r"  decode 100 tokens/s",
        ]
    )
    project.cost(ms=160)
    project.run("--perf-json=out.json", "--perf-evidence=off", failed=1).stdout.fnmatch_lines(
        ["where: decode 80.0 ms -> 160 ms (prefill unchanged)"]
    )
    report = ("-m", "perflab", "report", "out.json", "--sort=-decode", "--columns=prefill, decoed")
    refused = project.pytester.run(project.python, *report)
    refused.stderr.fnmatch_lines(["*--columns: 'decoed' is not one of these; did you mean decode?"])
    assert refused.ret == 2
    project.run("--perf-columns=prefill,decoed", "--perf-check=off").stdout.re_match_lines(
        [
            r"case +prefill +verdict",
            r"left out: 'decoed' is no standard column, and no case has it; did you mean",
        ]
    )


def test_a_generation_has_its_first_token_apart_and_counts_by_token(project: Project) -> None:
    project.test_file.write_text(GENERATION)
    columns = "--perf-columns=ttft, tpot, itl_p50, itl_p99, tokens/s, operators/token"
    result = project.run(columns, "--perf-json=out.json")
    result.stdout.re_match_lines(
        [
            r"case +ttft +tpot +itl p50 +itl p99 +tokens/s +operators/token +verdict",
            r"generate +40\.0 ms +15\.0 ms +15\.0 ms +– +100 +2 +new",
        ]
    )
    text = in_one_line(result)
    assert "prefill 40.0 ms · decode 60.0 ms" in text
    assert "itl p50 15.0 ms (10.0 ms…20.0 ms)" in text
    assert "50.0 sequence tokens/s" in text
    assert "2 operators/token" in text
    assert "allocations/token" in text
    (found,) = json.loads((project.pytester.path / "out.json").read_text())["results"]
    measurement = found["outcome"]["measurement"]
    generation = measurement["generation"]
    assert measurement["repetitions"] == 1
    assert generation["batch"] == 2
    assert set(generation["tokens"]) == {5}
    assert generation["statistics"]["tpot"] == {
        **{"value": 15e6, "formula": "(end - first) / (tokens - 1)"},
        **{"low": 15e6, "high": 15e6},
    }
    assert "itl_p99" not in generation["statistics"], "too few gaps"


def test_statistics_by_another_formula_are_neither_shown_nor_compared(project: Project) -> None:
    project.test_file.write_text(GENERATION)
    project.run("--perf-json=out.json")
    path = project.pytester.path / "out.json"
    text = path.read_text()
    assert "(end - first) / (tokens - 1)" in text
    path.with_name("other.json").write_text(text.replace("(end - first) / (tokens - 1)", "end / tokens"))
    report = ("-m", "perflab", "report", "other.json", "--columns=ttft, tpot")
    project.pytester.run(project.python, *report).stdout.re_match_lines(
        [r"generate +40\.0 ms +– +new", r".*tpot: by a formula of another version, not shown.*"]
    )
    both = project.pytester.run(project.python, "-m", "perflab", "compare", "out.json", "other.json", "--format=json")
    first, second = json.loads(both.stdout.str())["runs"]
    assert "tpot" in first["cases"][0]["quantities"]
    assert "tpot" not in second["cases"][0]["quantities"]
    assert "itl_p50" in second["cases"][0]["quantities"]


@pytest.mark.parametrize(
    ("lengths", "said"),
    [("[1]", "one token a call: no time per output token"), ("[4, 6]", "calls gave 4 to 6 tokens")],
)
def test_one_token_has_no_time_per_token_and_other_numbers_are_said(project: Project, lengths: str, said: str) -> None:
    project.test_file.write_text(GENERATION.replace("[5] * 1000", f"{lengths} * 1000"))
    assert said in in_one_line(project.run())


def test_a_streamer_s_first_put_is_the_prompt_and_set_up_is_none_of_prefill(project: Project) -> None:
    project.test_file.write_text(
        """
import torch
from conftest import Virtual

def spend(ms):
    Virtual.now_ns += 1_000_000 * ms

class Library:
    def generate(self, prompt, streamer):
        streamer.put(prompt)
        spend(30)
        for _ in range(3):
            streamer.put(torch.tensor([7, 8]))
            spend(5)
        streamer.end()
        return prompt

def test_generate(perf):
    model, prompt = Library(), torch.zeros(2, 9, dtype=torch.int64)
    perf.generation(lambda streamer: model.generate(prompt, streamer=streamer), batch=2, setup=lambda: spend(500))
"""
    )
    project.run("--perf-columns=median,ttft,tpot,tokens/s").stdout.re_match_lines(
        [r"generate +45\.0 ms +30\.0 ms +7\.50 ms +133 +new"]
    )


def test_quantiles_of_calls_have_intervals_and_need_enough_samples(project: Project) -> None:
    project.test_file.write_text(
        "from itertools import cycle\nfrom conftest import Virtual\n\ncosts = cycle(range(1, 41))\n\n"
        "def work():\n    Virtual.now_ns += 10_000_000 * next(costs)\n\n"
        "def test_work(perf):\n    perf(work)\n"
    )
    project.run("--perf-columns=p50,p90,p99").stdout.re_match_lines(
        [r"work +\d+ ms +\d+ ms +– +new", r".*p90 \d+ ms \(\d+ ms…\d+ ms\)"]
    )


REFUSED_BODIES = [
    ("perf.phases()", "perf.phases() got no phase*perf.phases(prefill=start, decode=go)*"),
    ("perf.phases(prefill=3)", "perf.phases(prefill=...) got 'int', which cannot be called*"),
    (
        "perf.phases(peak=print)",
        "perf.phases(peak=...): 'peak' means something else in tables*call the phase something else*",
    ),
    ("perf.phases(**{'a b': print})", "perf.phases(a b=...): 'a b' cannot be a column's name*"),
    ("perf.note(decode=3); perf.phases(decode=int)", "perf.note(decode=3): 'decode' is a phase of the case*"),
    (
        "perf.phases(decode=lambda: pass_time(9)); perf.note(decode=3)",
        "perf.note(decode=3): 'decode' is a phase of the case*",
    ),
    ("perf.note(ttft=3)", "*have a column 'ttft' already*"),
    ("perf.generation(lambda hook: 3)", "perf.generation: * returned without a call of its hook*hook()*"),
    ("perf.generation(lambda hook: hook(0))", "the hook of perf.generation got 0*"),
    ("perf.generation(3)", "perf.generation(...) got 'int', which cannot be called*"),
    ("perf.generation(print, setup=3)", "perf.generation(setup=...) got 'int'*"),
    ("perf.generation(print, batch=0)", "perf.generation(batch=0)*1 or more*"),
    ("perf.generation(lambda hook: hook(), setup=dict)", "setup of perf.generation(*) returned dict*hook alone*"),
]


def failures(result: pytest.RunResult) -> dict[str, str]:
    """What was printed of each test that failed, by its name."""
    _, *found = re.split(r"^_+ (test_\w+) _+$", result.stdout.str(), flags=re.MULTILINE)
    return dict(zip(found[::2], found[1::2], strict=True))


def test_what_cannot_be_measured_is_refused_with_the_remedy(project: Project) -> None:
    bodies = [f"def test_{number}(perf):\n    {body}\n" for number, (body, _) in enumerate(REFUSED_BODIES)]
    head = "from conftest import Virtual\n\ndef pass_time(ms):\n    Virtual.now_ns += 1_000_000 * ms\n\n"
    project.test_file.write_text(head + "\n".join(bodies))
    told = failures(project.run("--perf-check=off", failed=len(bodies)))
    for number, (body, said) in enumerate(REFUSED_BODIES):
        assert all(part in told[f"test_{number}"] for part in said.split("*")), (body, told[f"test_{number}"])


def test_phases_are_not_replayed(project: Project) -> None:
    project.add(
        "\nimport perflab.measured.run.cases as measuring\nmeasuring.no_graph_for = lambda *_: None\n", "conftest.py"
    )
    calls = {"generation": "lambda hook: hook()", "phases": "prefill=int"}
    project.test_file.write_text(
        "".join(f"def test_{name}(perf):\n    perf.{name}({given})\n\n" for name, given in calls.items())
    )
    told = failures(project.run("--perf-cuda-graph", failed=2))
    for name in calls:
        refusal = f"perf.{name} in a CUDA graph: a replay is the whole call, without timed phases"
        assert refusal in told[f"test_{name}"]
        assert "by itself" in told[f"test_{name}"]


def test_phases_and_generations_run_once_in_a_plain_run_and_are_predicted(
    project: Project, python_with_compiler: str
) -> None:
    project.test_file.write_text(
        "import torch\n\n"
        "def test_phases(perf, device):\n"
        "    weight = torch.ones(64, 64, device=device)\n"
        "    perf.phases(prefill=lambda: weight @ weight, decode=lambda cache: cache + 1)\n\n"
        "def test_tokens(perf, device):\n"
        "    weight = torch.ones(64, 64, device=device)\n"
        "    def generate(hook):\n"
        "        x = weight @ weight\n"
        "        hook()\n"
        "        x = x @ weight\n"
        "        hook()\n"
        "        return x\n"
        "    perf.generation(generate)\n"
    )
    project.run("--perf-disable", passed=2)
    project.python = python_with_compiler
    result = project.run("--perf-predict", "-k", "phases", "--perf-gpu=h100", passed=1)
    result.stdout.fnmatch_lines(["by module*prefill*decode"])
    project.run("--perf-predict", "-k", "tokens", "--perf-gpu=h100", passed=1)


def test_a_misspelt_standard_column_is_refused_at_once(project: Project) -> None:
    project.run("--perf-columns=ttft,median ,itlp50", ret=REFUSED).stderr.fnmatch_lines(["*did you mean itl_p50?*"])
