"""What this machine can run: backend, number of ranks, torch version."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fsdpfuzz.case import MAX_RANKS

if TYPE_CHECKING:
    from fsdpfuzz.pool import Interpreter
    from fsdpfuzz.wire import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The backend and the world sizes to use."""

    backend: Backend
    world_sizes: tuple[int, ...]
    torch: str
    offers: tuple[str, ...] = ()
    """What that torch has of what fsdpfuzz uses."""
    most_ranks: int = MAX_RANKS
    """How many ranks there can be: for NCCL one a GPU."""


def installed_torch() -> str:
    """The version of the torch that is installed, without importing it; empty if none is."""
    from fsdpfuzz.pool import own_interpreter

    return own_interpreter().torch


def visible_gpus(devices: Path = Path("/dev")) -> int:
    """How many NVIDIA GPUs a process would see; a cheap guess without importing torch."""
    return len(told_devices(devices))


def told_devices(devices: Path = Path("/dev")) -> list[str]:
    """The names under which a process would see NVIDIA GPUs, by the same guess."""
    # /dev/nvidia0 and the like are devices; /dev/nvidiactl and /dev/nvidia-uvm are the driver's.
    nodes = sum(path.name[6:].isdigit() for path in devices.glob("nvidia[0-9]*"))
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    if told is None:
        return [str(number) for number in range(nodes)]
    return [name.strip() for name in told.split(",") if name.strip() not in ("", "-1")][:nodes]


def guess_backend(choice: str) -> Backend:
    """The backend that ``choice`` will probably mean, for a header line."""
    if choice != "auto":
        return cast("Backend", choice)
    return "nccl" if visible_gpus() >= 2 else "gloo"


def resolve_machine(
    choice: str, world_sizes: tuple[int, ...], python: Interpreter | None = None
) -> Resolved:
    """What to run on, or :class:`MachineError` with what is missing.

    ``choice`` is ``auto``, ``gloo`` or ``nccl``. NCCL has one rank per GPU: of several world
    sizes those that need more are left out.
    """
    from fsdpfuzz.pool import choose_backend, probe_machine

    machine = probe_machine(python)
    backend = choose_backend(machine, choice, min(world_sizes))
    most = machine.gpus if backend == "nccl" else MAX_RANKS
    return Resolved(
        backend=backend,
        world_sizes=tuple(size for size in world_sizes if size <= most),
        torch=machine.torch,
        offers=machine.offers,
        most_ranks=most,
    )


POOLS_A_GPU = 2
"""Measured on two H200: one pool gives 12 cases a second, four give 28, and so do eight."""


def jobs_for(backend: Backend) -> int:
    """How many runs side by side are worth it on this machine: ``--jobs auto``."""
    from fsdpfuzz.pool import probe_machine

    # What this process may use, which in a container is less than what the machine has.
    half = max(1, len(os.sched_getaffinity(0)) // 2)
    if backend == "gloo":
        return half
    return max(1, min(half, POOLS_A_GPU * probe_machine().gpus))
