"""The backend follows the machine, and what is missing is said."""

from __future__ import annotations

import sys

import msgspec
import pytest

from fsdpfuzz.case import NEWER
from fsdpfuzz.errors import MachineError, UsageError
from fsdpfuzz.pool import Machine, choose_backend, probe_machine
from fsdpfuzz.ranks._machine_probe import public

CPU = Machine(python="3.12", torch="2.13.0", gloo=True, features={"fsdp1": True})
TWO = msgspec.structs.replace(CPU, nccl="2.28", gpus=2, cuda="13.0", cuda_available=True)


@pytest.mark.parametrize(
    ("machine", "wanted", "world_size", "backend"),
    [
        (CPU, "auto", 2, "gloo"),
        (CPU, "gloo", 8, "gloo"),
        (TWO, "auto", 2, "nccl"),
        (TWO, "auto", 4, "gloo"),
        (TWO, "nccl", 2, "nccl"),
        (TWO, "gloo", 2, "gloo"),
        (msgspec.structs.replace(TWO, gpus=1), "auto", 1, "gloo"),
        (msgspec.structs.replace(TWO, gpus=1), "nccl", 1, "nccl"),
    ],
)
def test_the_backend_follows_the_machine(
    machine: Machine, wanted: str, world_size: int, backend: str
) -> None:
    assert choose_backend(machine, wanted, world_size) == backend


@pytest.mark.parametrize(
    ("machine", "wanted", "world_size", "missing"),
    [
        (CPU, "nccl", 2, "without NCCL"),
        (TWO, "nccl", 3, "torch sees 2"),
        (msgspec.structs.replace(CPU, gloo=False), "auto", 2, "without gloo"),
        (msgspec.structs.replace(CPU, features={}), "auto", 2, "no FSDP"),
    ],
)
def test_what_is_missing_is_said(
    machine: Machine, wanted: str, world_size: int, missing: str
) -> None:
    with pytest.raises(MachineError, match=missing):
        choose_backend(machine, wanted, world_size)


def test_an_unknown_backend_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'mpi'"):
        choose_backend(CPU, "mpi")


def test_the_machine_is_looked_at() -> None:
    machine = probe_machine()
    assert machine.torch.startswith("2.")
    assert machine.python == ".".join(map(str, sys.version_info[:3]))
    assert machine.cores >= 1
    assert machine.memory_bytes > 1 << 28
    assert machine.features["fsdp1"]
    assert machine.features["fsdp2"]
    assert set(NEWER) <= set(machine.features)
    assert machine.os
    assert len(machine.gpu_names) == machine.gpus
    assert probe_machine() is machine


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("fully_shard(mesh)", True),
        ("fully_shard(moon)", False),
        ("FSDPModule.reshard()", True),
        ("FSDPModule.reshard(recurse)", False),
        ("FSDPModule.fly()", False),
        ("MixedPrecisionPolicy(reduce_dtype)", True),
        ("Nothing()", False),
    ],
)
def test_what_torch_offers_is_asked_by_name(name: str, there: bool) -> None:
    assert public(name) is there
