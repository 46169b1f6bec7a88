"""Runs in a process of its own: asks torch and the machine what they offer."""

from __future__ import annotations

import importlib
import inspect
import os
import platform
import socket
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.utils import collect_env

from fsdpfuzz.case import NEWER
from fsdpfuzz.wire import Machine

_MEMORY_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


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


def main(_: bytes, channel: socket.socket) -> None:
    """Sends a :class:`Machine` in JSON through the channel."""
    channel.sendall(msgspec.json.encode(look()))


def look() -> Machine:
    """What torch finds here; initialises CUDA, so not for a process that forks ranks."""
    distributed = torch.distributed.is_available()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    nccl = distributed and torch.distributed.is_nccl_available()
    return Machine(
        python=platform.python_version(),
        torch=str(torch.__version__),
        os=_os(),
        cuda=torch.version.cuda or "",
        cuda_available=gpus > 0,
        nccl=_nccl_version() if nccl else "",
        gloo=distributed and torch.distributed.is_gloo_available(),
        mpi=distributed and torch.distributed.is_mpi_available(),
        gpus=gpus,
        gpu_names=tuple(torch.cuda.get_device_name(i) for i in range(gpus)),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=_memory(),
        features={
            **{name: _offers(*where) for name, where in _FEATURES.items()},
            "ignored_params": public("fully_shard(ignored_params)"),
            **{name: public(name) for name in NEWER},
        },
    )


def _os() -> str:
    try:
        found = collect_env.get_os(collect_env.run)  # type: ignore[no-untyped-call]
        return str(found or "")
    except Exception:  # it asks programs of the machine, which may say anything
        return ""


def _nccl_version() -> str:
    try:
        found = importlib.import_module("torch.cuda.nccl").version()
    except Exception:  # a build with NCCL on a machine without a driver
        return "unknown"
    return ".".join(map(str, found))


def _offers(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name)
    except Exception:  # whatever keeps a module from loading, the feature is not there
        return False


def public(named: str) -> bool:
    """Whether ``torch.distributed.fsdp`` has it: ``function(parameter)``, ``Class.method()``.

    What lies elsewhere is named by its module, too.
    """
    path, _, parameter = named.removesuffix(")").partition("(")
    module = "torch.distributed.fsdp"
    if path.startswith("torch."):
        module, _, path = path.rpartition(".")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        return not parameter or parameter in inspect.signature(found).parameters
    except Exception:  # as in `_offers`
        return False


def _memory() -> int:
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in _MEMORY_LIMITS:
        try:
            sizes.append(int(file.read_text()))
        except (OSError, ValueError):
            continue
    return min(sizes)
