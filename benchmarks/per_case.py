"""A process per rank per case, as PyTorch's own ``FSDPTest`` runs its tests."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import msgspec

from fsdpfuzz.case import CaseSpec, decode, encode
from fsdpfuzz.forkserver import rank_environment
from fsdpfuzz.observations import RankReport
from fsdpfuzz.wire import Backend

_SECONDS = 300.0


def run_in_fresh_processes(case: CaseSpec, backend: Backend) -> tuple[float, tuple[float, ...]]:
    """Seconds for one case: start its ranks, join them, train, part; and the losses.

    Less than a test of PyTorch's does: nothing of ``torch.testing`` is imported.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        ranks = [
            context.Process(
                target=_rank, args=(rank, case.world_size, backend, folder, encode(case))
            )
            for rank in range(case.world_size)
        ]
        try:
            for process in ranks:
                process.start()
            for process in ranks:
                process.join(_SECONDS)
        finally:
            for process in ranks:
                process.kill()
                process.join()
        seconds = time.perf_counter() - started
        codes = [process.exitcode for process in ranks]
        if any(codes):
            raise SystemExit(f"fresh ranks ended with {codes}")
        reports = [
            msgspec.json.decode((Path(folder) / f"report-{rank}").read_bytes(), type=RankReport)
            for rank in range(case.world_size)
        ]
    losses = (x for report in reports for subject in report.subjects for x in subject.losses)
    return seconds, tuple(losses)


def _rank(rank: int, world_size: int, backend: Backend, folder: str, case: bytes) -> None:
    os.environ.update(rank_environment(os.environ))
    import torch.distributed as dist

    from fsdpfuzz.ranks import _worker
    from fsdpfuzz.wire import Setup

    setup = Setup(rank=rank, world_size=world_size, backend=backend, folder=folder, generation=1)
    env = _worker._join(setup)
    report = _worker.run_case(decode(case), env)
    (Path(folder) / f"report-{rank}").write_bytes(msgspec.json.encode(report))
    dist.barrier()
    dist.destroy_process_group()
