"""Injected in the ranks of a benchmark: which lines and branches of FSDP's files they run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import coverage
import torch

from fsdpfuzz.ranks import _worker
from fsdpfuzz.ranks._env import RankEnv

FOLDER = "FSDPFUZZ_COVERED"
"""The environment variable that names the folder in which ranks leave what they ran."""
INSIDE = (
    "distributed/fsdp/*",
    "distributed/_composable/*",
    "distributed/checkpoint/state_dict.py",
)


def patterns() -> list[str]:
    """The files that are looked at."""
    return [str(Path(str(torch.__file__)).parent / name) for name in INSIDE]


def install(_env: RankEnv) -> None:
    """Measures each case; what is new is on disk before the next one, in which a rank may die."""
    measured = coverage.Coverage(
        data_file=str(Path(os.environ[FOLDER]) / f"ranks.{os.getpid()}"),
        branch=True,
        include=patterns(),
        config_file=False,
        messages=False,
    )
    run_case, known = _worker.run_case, 0

    def size() -> int:
        data = measured.get_data()
        return sum(len(data.arcs(name) or ()) for name in data.measured_files())

    def run(case: Any, env: Any) -> Any:
        nonlocal known
        measured.start()
        try:
            return run_case(case, env)
        finally:
            measured.stop()
            now = size()
            if now > known:
                known = now
                measured.save()

    setattr(_worker, "run_case", run)  # noqa: B010 (it takes what it is given)
