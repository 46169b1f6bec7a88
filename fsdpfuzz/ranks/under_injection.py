"""Runs a standalone script with a fault injected, as one rank under torchrun.

    torchrun --nproc-per-node N -m fsdpfuzz.ranks.under_injection MODULE:FUNCTION SCRIPT

A script that was made of an injected fault shows it only where the fault is.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
import tempfile
from pathlib import Path

import torch

from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.wire import FlightRecorder


def main(injection: str, script: str) -> None:
    """Calls the injection with the `RankEnv` that a pool would give it, then runs the script."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cuda = torch.cuda.device_count() >= ranks
    with tempfile.TemporaryDirectory() as folder:
        env = RankEnv(
            rank=rank,
            world_size=ranks,
            backend="nccl" if cuda else "gloo",
            device=torch.device("cuda", rank) if cuda else torch.device("cpu"),
            flight=FlightRecorder(Path(folder) / "flight"),
            folder=Path(folder),
        )
        module, _, function = injection.partition(":")
        # Before the script: it makes its process group itself, and
        # imports torch's names as they are by then.
        getattr(importlib.import_module(module), function)(env)
        sys.argv = [script]
        # In this very process, where what was injected holds.
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
