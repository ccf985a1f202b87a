"""What machine this is, by a name that a folder can have, and what keeps two of them from being compared."""

from __future__ import annotations

import io
import platform
import re
from typing import Any

import msgspec
import pytest
import torch

from perflab.devices.kinds import current_environment, nccl
from perflab.results import environment as module
from perflab.results.environment import cpu_name, differing, is_fleeting, slug, this_machine, usable_cores, whole_slug
from perflab.results.records import Environment
from tests.harness.make import cuda_environment, environment


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        (environment(), "cpu-amd-epyc-25-17-2c-torch2.13"),
        (environment(cores=64, torch="2.14.0a0+gitdeadbeef"), "cpu-amd-epyc-25-17-64c-torch2.14"),
        (environment(device_name="Apple M3 Pro"), "cpu-apple-m3-pro-2c-torch2.13"),
        (cuda_environment(), "cuda-nvidia-h200-torch2.13"),
        (cuda_environment(device_name="NVIDIA GeForce RTX 4090 (Laptop/50 W)"), None),
    ],
)
def test_an_environments_folder_is_named_by_device_and_torch(machine: Environment, name: str | None) -> None:
    assert name is None or slug(machine) == name
    assert set(slug(machine)) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")
    assert "--" not in slug(machine)


def test_nccls_version_and_variables_are_part_of_the_environment_of_ranks_on_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert nccl() is None
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.nccl.version", lambda: (2, 27, 5))
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    for world_size, told in ((1, None), (2, "2.27.5 NCCL_ALGO=Ring")):
        monkeypatch.setattr("torch.distributed.get_world_size", lambda world_size=world_size: world_size)
        assert nccl() == told
    assert current_environment(torch.device("cpu")).nccl is None


@pytest.mark.parametrize("field", [field.name for field in msgspec.structs.fields(Environment)])
def test_every_field_alone_keeps_two_environments_apart_and_is_named(field: str) -> None:
    before = cuda_environment(triton="3.6.0")
    old: Any = getattr(before, field)
    new = old + 1 if isinstance(old, int) else f"{old}x"
    after = msgspec.structs.replace(before, **{field: new})
    assert differing(before, after) == {field: f"{field.replace('_', ' ')} {old} -> {new}"}
    assert whole_slug(after) != whole_slug(before) == whole_slug(cuda_environment(triton="3.6.0"))
    assert whole_slug(before).startswith(f"{slug(before)}-2t-python3.11-")


def test_the_environment_of_this_process_survives_a_file() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        here = current_environment(torch.device("cpu"))
    finally:
        torch.set_num_threads(before)
    assert msgspec.json.decode(msgspec.json.encode(here), type=Environment) == here
    assert here.device == "cpu"
    assert here.cuda is None
    assert here.driver is None
    assert here.threads == 3
    assert here.torch == torch.__version__


def test_usable_cores_are_those_of_this_process_and_not_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {3, 5, 7}, raising=False)
    assert usable_cores() == 3


def replace_files(monkeypatch: pytest.MonkeyPatch, place: str, text: str | None) -> None:
    """Let the machine have one file alone, with this text; None: it has none."""

    def fake_open(path: str, **_kwargs: object) -> io.StringIO:
        if text is None or path != place:
            raise FileNotFoundError(path)
        return io.StringIO(text)

    monkeypatch.setattr(module, "open", fake_open, raising=False)


def machine_named(
    monkeypatch: pytest.MonkeyPatch, *, identifier: str | None, host: str, address: int = 0x3C5282000001
) -> str:
    """What a machine is called whose ``machine-id``, host name and network card are these."""
    replace_files(monkeypatch, "/etc/machine-id", None if identifier is None else f"{identifier}\n")
    monkeypatch.setattr(platform, "node", lambda: host)
    monkeypatch.setattr("uuid.getnode", lambda: address)
    monkeypatch.setattr("os.path.exists", lambda _path: False)  # no mark of a container
    return this_machine.__wrapped__()


def test_a_machine_keeps_its_name_where_its_host_is_called_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = "3d1219c7c4c5404aaa1f6d2a48adfda4", "0" * 32
    name = machine_named(monkeypatch, identifier=one, host="laptop.home")
    assert re.fullmatch("[0-9a-f]{8}", name)
    assert machine_named(monkeypatch, identifier=one, host="dhcp-17.office", address=1) == name
    assert not is_fleeting()
    assert machine_named(monkeypatch, identifier=other, host="laptop.home") != name


@pytest.mark.parametrize("identifier", [None, "", "uninitialized"])
def test_without_an_identifier_host_and_network_card_name_the_machine(
    monkeypatch: pytest.MonkeyPatch, identifier: str | None
) -> None:
    name = machine_named(monkeypatch, identifier=identifier, host="a")
    assert machine_named(monkeypatch, identifier=identifier, host="a") == name
    assert machine_named(monkeypatch, identifier=identifier, host="b") != name
    assert machine_named(monkeypatch, identifier=identifier, host="a", address=0x3C5282000002) != name
    assert is_fleeting()


def test_an_address_that_was_made_up_is_no_part_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = (0x3D5282000001, 0x3D5282000002)  # the multicast bit is set, and each process has another one
    first, second = (machine_named(monkeypatch, identifier=None, host="a", address=one) for one in made_up)
    assert first == second


def named(monkeypatch: pytest.MonkeyPatch, cpuinfo: str | None) -> str:
    """The processor's name on a machine whose ``/proc/cpuinfo`` reads so."""
    replace_files(monkeypatch, "/proc/cpuinfo", cpuinfo)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    return cpu_name.__wrapped__()


@pytest.mark.parametrize(
    ("brand", "family", "model", "name"),
    [
        ("AMD EPYC", "25", "17", "AMD EPYC"),
        ("AMD EPYC 9654 96-Core Processor", "25", "17", "AMD EPYC 9654"),
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "6", "143", "Intel Xeon Platinum 8481C"),
        ("Intel(R) Core(TM) i7-1185G7 @ 3.00GHz", "6", "140", "Intel Core i7-1185G7"),
    ],
)
def test_a_processor_is_named_without_trademarks_and_clock_and_with_its_family(
    monkeypatch: pytest.MonkeyPatch, brand: str, family: str, model: str, name: str
) -> None:
    core = f"processor\t: 0\nvendor_id\t: X\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: {brand}\n\n"
    assert named(monkeypatch, core + core) == f"{name} (family {family}, model {model})"


def test_a_processor_without_a_brand_is_named_by_architecture_and_make_and_else_by_the_platform(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert named(monkeypatch, "processor\t: 0\nBogoMIPS\t: 2100.00\n").startswith("aarch64")
    graviton2 = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"
    graviton3 = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
    assert named(monkeypatch, graviton2) != named(monkeypatch, graviton3)
    assert named(monkeypatch, None) == "arm", "where there is no /proc"
