"""Runs of many injections side by side, each in a process of its own, kept in a file of JSON lines.

A line is written when its run is over. What the file holds already is not run again, so that a
bench that was cut off goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from fsdpfuzz.loop import jobs_for

ROOT = Path(__file__).resolve().parents[1]
Record = dict[str, Any]
GRACE = 150.0
"""Seconds that a run may take beyond its drawing, for reduction and the script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of one injection."""

    id: str
    kind: Literal["hunt", "kill", "seeds"]
    injection: str | None
    world_size: int = 2


@dataclass(slots=True)
class Bench:
    """The jobs' records, in a file and in memory."""

    path: Path
    options: argparse.Namespace
    records: dict[tuple[str, str], Record] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Reads what an earlier call has left for the same torch, seed and bounds."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # cut off in the middle of a write
            # What had less time than there is now says nothing of as many examples.
            late = record["status"] == "out of time"
            cut_short = late and record["seconds"] < self.options.seconds
            if record["settings"] == self.settings and not cut_short:
                self.records[record["id"], record["kind"]] = record

    @property
    def settings(self) -> Record:
        """What records must have in common to be counted together."""
        options = self.options
        return {
            "torch": version("torch"),
            "backend": options.backend,
            "seed": options.seed,
            "examples": options.examples,
        }

    def run(self, jobs: Sequence[Job], tell: Callable[[Job, Record], None]) -> bool:
        """Runs the jobs that have no record; whether all have one in the end."""
        end = time.monotonic() + self.options.max_seconds
        with ThreadPoolExecutor(self.options.jobs) as threads:
            for job in jobs:
                if (job.id, job.kind) not in self.records:
                    threads.submit(self._run, job, end, tell)
        return all((job.id, job.kind) in self.records for job in jobs)

    def _run(self, job: Job, end: float, tell: Callable[[Job, Record], None]) -> None:
        left = end - time.monotonic()
        if left <= 0:
            return
        limit = self.options.seconds + GRACE
        record = run_job(job, self.options, min(limit, left))
        if record["status"] == "timeout" and limit > left:
            return  # this call's time is over; the next one runs it again
        record = {"id": job.id, "kind": job.kind, "settings": self.settings, **record}
        with self._lock:
            self.records[job.id, job.kind] = record
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            tell(job, record)


def run_job(job: Job, options: argparse.Namespace, limit: float) -> Record:
    """Runs one to its end; what it printed, or why it printed nothing."""
    words = [sys.executable, "-m", "benchmarks.one_injection", job.kind]
    words += ["--world-size", str(job.world_size)]
    for name in ("examples", "after", "seconds", "shrink_seconds", "seed", "backend"):
        words += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    if job.injection is not None:
        words += ["--inject", job.injection]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"status": "timeout", "seconds": round(limit, 1)}
    try:
        record: Record = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        return {"status": "error", "reason": (err or out)[-2000:]}
    return record


def add_options(parser: argparse.ArgumentParser, path: Path) -> None:
    """The options that all benches of injections have."""
    from benchmarks.one_injection import add_bounds

    parser.add_argument("--jobs", type=int, default=jobs_for("gloo"))
    parser.add_argument("--only", nargs="+", metavar="ID", default=[])
    parser.add_argument("--json", type=Path, default=path, help="JSON lines, gone on with")
    parser.add_argument("--page", type=Path, help="also write what came of it in Markdown")
    parser.add_argument("--seeds-only", action="store_true")
    parser.add_argument("--without-seeds", action="store_true")
    parser.add_argument("--max-seconds", type=float, default=1e9, help="for the whole bench")
    add_bounds(parser)
