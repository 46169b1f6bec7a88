"""How long until fresh ranks have run a collective after a rank died, and after a hang.

The time of a restart is that of everything between the moment at which the pool has its
verdict on the bad case and the moment at which fresh ranks have broadcast the next case and
answered it. What finding a hang costs (the deadline) is given apart from it.

    python benchmarks/restart.py [--backend gloo|nccl] [--world-size N] [--times N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.pool import Deadlines, Pool, choose_backend, probe_machine, sigterm_exits
from tests.misbehaviour import quick

DEADLINES = Deadlines(floor=1.0, ceiling=60.0, learning=1)
INJECTION = "tests.misbehaviour:install"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", choices=("auto", "gloo", "nccl"), default="auto")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with sigterm_exits():
        result = measure(options.backend, options.world_size, options.times)
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def measure(wanted: str, world_size: int, times: int) -> dict[str, Any]:
    started = time.perf_counter()
    machine = probe_machine()
    server = time.perf_counter() - started
    backend = choose_backend(machine, wanted, world_size)
    clean = quick(world_size=world_size)
    with Pool(world_size, backend, deadlines=DEADLINES, injection=INJECTION) as pool:
        started = time.perf_counter()
        pool.start()
        first = time.perf_counter() - started
        pool.run(clean)
        overhead = [_run(pool, clean) for _ in range(200)]
        death = [_restart(pool, clean, "sigkill") for _ in range(times)]
        hang = [_restart(pool, clean, "endless_python") for _ in range(times)]
    return {
        "torch": machine.torch,
        "backend": backend,
        "world_size": world_size,
        "cores": machine.cores,
        "gpus": list(machine.gpu_names),
        "fork_server_seconds": round(server, 4),
        "first_ranks_seconds": round(first, 4),
        "quick_case_seconds": round(statistics.median(overhead), 5),
        "after_death": _summary(death),
        "after_hang": _summary(hang),
    }


def _run(pool: Pool, case: CaseSpec) -> float:
    started = time.perf_counter()
    if not pool.run(case).clean:
        raise SystemExit("a clean case failed")
    return time.perf_counter() - started


def _restart(pool: Pool, clean: CaseSpec, fault: str) -> tuple[float, float]:
    """Seconds that noticing the fault took, and from then to the answer to the next case."""
    started = time.perf_counter()
    seen = pool.run(quick(fault, world_size=clean.world_size))
    if seen.clean:
        raise SystemExit(f"{fault} went by unnoticed")
    # Killing the old ranks belongs to the restart, although `run` does it before it returns.
    killing = time.perf_counter() - started - seen.seconds
    return seen.seconds, killing + _run(pool, clean)


def _summary(rows: list[tuple[float, float]]) -> dict[str, float]:
    noticed, restarted = zip(*rows, strict=True)
    return {
        "restart_seconds": round(statistics.median(restarted), 4),
        "restart_seconds_worst": round(max(restarted), 4),
        "noticed_after_seconds": round(statistics.median(noticed), 4),
    }


if __name__ == "__main__":
    sys.exit(main())
