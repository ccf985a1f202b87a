"""What cannot be used is refused before anything is measured, with the place and the remedy; nothing is lost."""

from __future__ import annotations

import pytest
import torch  # noqa: F401 - before sessions in this process, which would import it again and again

from tests.plugin.conftest import REFUSED, Project, run_pytest

PLAIN = "def test_x(perf):\n    perf(sum, range(1000))\n"


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--perf-threshold=5", "*--perf-threshold: '5' is not a share such as 5% or 0.05*"),
        ("--perf-memory-threshold=much", "*--perf-memory-threshold: 'much' is not a share*"),
        ("--perf-floor=2", "*--perf-floor: '2' is not a duration such as 2us, 1.5ms or 3s*"),
        ("--perf-budget=-1", "*--perf-budget: '-1' is not a positive number of seconds*"),
        ("--perf-device=cuda:x", "*--perf-device: 'cuda:x' is not a device; use auto, cpu, or an accelerator*"),
        ("--perf-replicates=0", "*--perf-replicates: '0' is not a number of processes*"),
        ("--perf-check=maybe", "*--perf-check*maybe*"),
        ("--perf-counts=some", "*--perf-counts*some*"),
        ("--perf-cache=hot", "*--perf-cache: invalid choice: 'hot' (choose from *warm*, *cold*"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(pytester: pytest.Pytester, argument: str, said: str) -> None:
    result = pytester.runpytest_inprocess(argument)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])


@pytest.mark.parametrize(
    ("ini", "said"),
    [
        ("perf_check = perhaps", "*ini key perf_check: 'perhaps' is not one of on, off, strict*"),
        ("perf_cache = hot", "*ini key perf_cache: 'hot' is not one of warm, cold*"),
        ("perf_cuda_graph = maybe", "*ini key perf_cuda_graph: 'maybe' is neither true nor false*"),
    ],
)
def test_an_ini_key_that_makes_no_sense_is_refused_by_name(pytester: pytest.Pytester, ini: str, said: str) -> None:
    pytester.makeini(f"[pytest]\n{ini}\n")
    pytester.makepyfile(PLAIN)
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])


def test_an_ini_key_that_makes_no_sense_fails_each_test_of_a_worker(pytester: pytest.Pytester, python: str) -> None:
    pytester.makeini("[pytest]\nperf_check = perhaps\n")
    pytester.makepyfile(f"{PLAIN}def test_y(device):\n    pass\ndef test_z():\n    pass\n")
    result = run_pytest(pytester, python, "-n1", errors=3)
    result.stdout.fnmatch_lines(["*ini key perf_check: 'perhaps' is not one of on, off, strict*"])


def test_an_ini_key_that_makes_no_sense_is_left_alone_until_something_asks(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nperf_check = perhaps\n")
    pytester.makepyfile(f"{PLAIN}def test_y(device):\n    pass\ndef test_z():\n    pass\n")
    result = pytester.runpytest_inprocess("-m", "not perf")
    result.assert_outcomes(passed=1, errors=1, deselected=1)
    result.stdout.fnmatch_lines(["*ini key perf_check: 'perhaps' is not one of on, off, strict*"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("treshold='10%'", "*test_x: @pytest.mark.perf has no argument 'treshold'*did you mean 'threshold'?*"),
        ("'10%'", "*test_x: @pytest.mark.perf takes no positional arguments, got '10%'*"),
        ("threshold=5", "*test_x: @pytest.mark.perf(threshold=...): '5' is not a share*"),
        ("warmup=-1", "*@pytest.mark.perf(warmup=...): -1 is not a number of warm-up calls*"),
        ("budget=True", "*@pytest.mark.perf(budget=...): True is neither a number nor a text*"),
        ("allow_nan=1", "*@pytest.mark.perf(allow_nan=...): 1 is neither True nor False*"),
        ("cache='hot'", "*test_x: @pytest.mark.perf(cache=...): 'hot' is not one of warm, cold*"),
        ("cache=True", "*@pytest.mark.perf(cache=...): 'True' is not one of warm, cold*"),
        ("cuda_graph='yes'", "*@pytest.mark.perf(cuda_graph=...): 'yes' is neither True nor False*"),
        ("cuda_graph=True, warmup=0", "*test_x: warmup=0 and a CUDA graph: *leave one of them out*"),
    ],
)
def test_a_marker_argument_that_makes_no_sense_is_refused_by_name(
    pytester: pytest.Pytester, arguments: str, said: str
) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.perf({arguments})\n{PLAIN}")
    result = pytester.runpytest_inprocess("-m", "perf")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert pytest.LineMatcher([" ".join(result.stderr.str().split())]).fnmatch_lines([said]) is None


def test_the_correctness_marker_takes_no_arguments(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.correctness(atol=1)\ndef test_x():\n    pass\n")
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*@pytest.mark.correctness takes no arguments, got atol*"])


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="a CUDA device is there")
def test_a_device_that_is_not_there_is_refused_before_anything_runs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PLAIN)
    result = pytester.runpytest_inprocess("-m", "perf", "--perf-device=cuda:3")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--perf-device=cuda:3, but PyTorch*", "*use --perf-device=cpu or auto*"])


def test_a_damaged_baseline_file_is_named_and_left_as_it_is(project: Project) -> None:
    """All kinds of damage: ``tests/harness/test_store.py``."""
    project.run("--perf-update", "--perf-replicates=1").assert_outcomes(passed=1)
    raw = b'{"schema": 1,\n "cases": {'
    project.baseline_file().write_bytes(raw)
    for arguments in ([], ["--perf-update"]):
        result = project.run(*arguments, ret=REFUSED)
        result.stderr.fnmatch_lines(["*test_story.json is damaged at line 2, column *"])
    assert project.baseline_file().read_bytes() == raw


@pytest.mark.parametrize("directory", ["in_the_way", "/proc/perflab"])
def test_baselines_that_could_not_be_written_are_refused_before_measuring(project: Project, directory: str) -> None:
    (project.pytester.path / "in_the_way").write_text("a file\n")
    result = project.run("--perf-update", f"--perf-baselines={directory}", ret=REFUSED)
    result.stderr.fnmatch_lines(["*cannot write baselines to *", "*name a writable directory with --perf-base*"])
    assert "stands in" not in result.stderr.str() + result.stdout.str(), "no results are there"


def test_an_overridden_device_fixture_must_give_a_device(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.fixture\ndef device():\n    return 3\n" + PLAIN)
    result = pytester.runpytest_inprocess("-m", "perf")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the device fixture is overridden and gives 3*", "*return a torch.device*"])


def test_a_need_that_is_no_number_fails_its_case_alone_and_shows_no_frame_of_perflab(pytester: pytest.Pytester) -> None:
    needs = {"endless": "seconds=float('inf'), setup_seconds=1", "worded": "memory_bytes='8 GiB'"}
    bodies = [f"def test_{name}(perf):\n    perf.requires({given})\n    perf(int)\n" for name, given in needs.items()]
    pytester.makepyfile("".join([*bodies, PLAIN]))
    result = pytester.runpytest_inprocess("-m", "perf", "--perf-total-budget=60", "--perf-budget=0.1")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "perf.requires(seconds=inf)",
            "  -> give seconds of one call: a positive number",
            "perf.requires(memory_bytes=...) got 'str'",
            "  -> give bytes: a positive number",
            "case * verdict",
            "x * new",
        ]
    )
    result.stdout.no_fnmatch_line("*statements.py*")
    result.stdout.no_fnmatch_line("*amounts.py*")


def test_files_that_were_asked_for_and_have_no_place_fail_their_case_and_show_no_frame_of_perflab(
    project: Project,
) -> None:
    (project.pytester.path / ".perflab").mkdir()
    (project.pytester.path / ".perflab" / "snapshots").write_text("no folder")
    said = project.run("--perf-snapshots", failed=1).stdout.str()
    assert "/.perflab/snapshots: File exists\n  -> make .perflab writable" in said
    assert "own_place" not in said
