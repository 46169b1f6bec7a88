"""How long an all-reduce takes here: an injection that adds its measurement to each report."""

from __future__ import annotations

import time
from statistics import median

import msgspec
import torch
import torch.distributed as dist

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.observations import RankReport
from fsdpfuzz.ranks import _worker
from fsdpfuzz.ranks._env import RankEnv

SIZES = {"all-reduce of 4 B": (1, 50), "all-reduce of 4 MiB": (1 << 20, 5)}
"""Name to the number of float32 elements and how often it is measured."""
_WARM_UPS = 3


def inject(_: RankEnv) -> None:
    """Has every report of this rank carry the median seconds of each of `SIZES`."""
    # The name that `main` looks up when it starts to serve, which is after the injection.
    run_case = _worker.run_case

    def measured(case: CaseSpec, env: RankEnv) -> RankReport:
        report = run_case(case, env)
        timings = {name: _seconds(env, *what) for name, what in SIZES.items()}
        return msgspec.structs.replace(report, timings=timings)

    _worker.run_case = measured


def _seconds(env: RankEnv, elements: int, times: int) -> float:
    tensor = torch.zeros(elements, device=env.device)
    taken = []
    for _ in range(_WARM_UPS + times):
        before = time.perf_counter()
        dist.all_reduce(tensor)
        if env.device.type == "cuda":
            # NCCL's calls return as soon as the kernel is queued.
            torch.cuda.synchronize(env.device)
        taken.append(time.perf_counter() - before)
    return median(taken[_WARM_UPS:])
