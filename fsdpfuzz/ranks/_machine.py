"""What the machine and its torch can do, found out in a fork that has torch loaded."""

from __future__ import annotations

import importlib
import os
import platform
from pathlib import Path
from typing import Literal

import msgspec

from fsdpfuzz.errors import MachineError


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as far as ranks are concerned."""

    python: str
    torch: str
    cuda: str = ""
    """CUDA version that torch was built with; empty for a CPU build."""
    nccl: str = ""
    gpus: int = 0
    gpu_names: tuple[str, ...] = ()
    gloo: bool = False
    cores: int = 1
    memory_bytes: int = 0
    """The smaller of physical memory and the control group's limit; 0 if unknown."""
    features: dict[str, bool] = {}
    """What this torch offers of what fsdpfuzz uses."""


_FEATURES = {
    "fsdp1": ("torch.distributed.fsdp", "FullyShardedDataParallel"),
    "fsdp2": ("torch.distributed.fsdp", "fully_shard"),
    "checkpoint_wrapper": (
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
        "checkpoint_wrapper",
    ),
    "composable_checkpoint": (
        "torch.distributed._composable.checkpoint_activation",
        "checkpoint",
    ),
    "mem_tracker": ("torch.distributed._tools.fsdp2_mem_tracker", "FSDPMemTracker"),
    "state_dict": ("torch.distributed.checkpoint.state_dict", "get_model_state_dict"),
}


def describe_machine() -> Machine:
    """Looks at this process's torch; imports it, so never call it in the controller."""
    import torch
    import torch.distributed as dist

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    nccl = dist.is_nccl_available() and gpus > 0
    return Machine(
        python=platform.python_version(),
        torch=str(torch.__version__),
        cuda=torch.version.cuda or "",
        nccl=_nccl_version() if nccl else "",
        gpus=gpus,
        gpu_names=tuple(torch.cuda.get_device_name(i) for i in range(gpus)),
        gloo=dist.is_gloo_available(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        memory_bytes=_memory(),
        features={name: _offers(*where) for name, where in _FEATURES.items()},
    )


def choose_backend(machine: Machine, wanted: str, world_size: int = 2) -> Literal["gloo", "nccl"]:
    """The backend to use, or :class:`MachineError` with what is missing.

    ``auto`` takes NCCL where there are two or more GPUs, and gloo elsewhere.
    """
    if not (machine.features.get("fsdp1") or machine.features.get("fsdp2")):
        raise MachineError(f"torch {machine.torch} has no FSDP: install torch 2.7 or later")
    if wanted == "nccl":
        if machine.gpus < world_size or not machine.nccl:
            raise MachineError(
                f"backend nccl needs {world_size} GPUs and a torch with NCCL; there are "
                f"{machine.gpus} GPUs and torch {machine.torch} has NCCL {machine.nccl or 'not'}: "
                "use --backend gloo"
            )
        return "nccl"
    if wanted == "auto" and machine.nccl and machine.gpus >= max(2, world_size):
        return "nccl"
    if not machine.gloo:
        raise MachineError(f"torch {machine.torch} is built without gloo, and nccl cannot be used")
    return "gloo"


def _offers(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name)
    except Exception:  # whatever keeps a module from loading, the feature is not there
        return False


def _nccl_version() -> str:
    from torch.cuda import nccl

    version: tuple[int, ...] = nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(map(str, version))


def _memory() -> int:
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path(name).read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return min(limits)
