"""What this machine can run: backend, number of ranks, torch version."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from fsdpfuzz.errors import MachineError
from fsdpfuzz.loop._settings import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The backend and the world sizes to use."""

    backend: Backend
    world_sizes: tuple[int, ...]
    torch: str


def installed_torch() -> str:
    """The version of the torch that is installed, without importing it; empty if none is."""
    import importlib.metadata

    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def visible_gpus() -> int:
    """How many NVIDIA device files there are; a cheap guess without importing torch."""
    return sum(path.name[6:].isdigit() for path in Path("/dev").glob("nvidia[0-9]*"))


def guess_backend(choice: str) -> Backend:
    """The backend that ``choice`` will probably mean, for a header line."""
    if choice != "auto":
        return cast(Backend, choice)
    return "nccl" if visible_gpus() >= 2 else "gloo"


def resolve_machine(choice: str, world_sizes: tuple[int, ...], *, fixed: bool) -> Resolved:
    """What to run on, or :class:`MachineError` with what is missing.

    ``choice`` is ``auto``, ``gloo`` or ``nccl``. NCCL has one rank per GPU: world sizes that
    need more are left out, unless ``fixed`` says that they were asked for.
    """
    from fsdpfuzz.ranks import choose_backend, probe_machine

    machine = probe_machine()
    backend: Backend = choose_backend(machine, choice)
    sizes = world_sizes
    if backend == "nccl":
        sizes = tuple(size for size in world_sizes if size <= machine.gpus)
        if fixed and sizes != world_sizes:
            raise MachineError(
                f"{max(world_sizes)} ranks on nccl need as many GPUs, but there are "
                f"{machine.gpus}; use --backend gloo or a smaller --world-size"
            )
    if not sizes:
        raise MachineError(
            f"nccl needs at least {min(world_sizes)} GPUs, but there are {machine.gpus}; "
            "use --backend gloo"
        )
    return Resolved(backend=backend, world_sizes=sizes, torch=machine.torch)
