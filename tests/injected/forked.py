"""Scripts in ranks that are forked from a process that has torch: what `verify` says, sooner.

torchrun imports torch once for itself and once for each rank, which takes longer than most
scripts. `fsdpfuzz.loop` runs them under torchrun, and so do the tests of `verify` itself.
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from fsdpfuzz.forkserver import ForkServer
from fsdpfuzz.repro.verify import TAIL, TIMEOUT, Verification, judged, verify
from fsdpfuzz.verdict import Finding

MOMENT = 1.0
"""Seconds for the other ranks to say what they have found."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank is to do."""

    script: str
    injection: str
    environment: dict[str, str]


def verify_forked(
    script: Path,
    world_size: int,
    backend: str,
    finding: Finding | None = None,
    *,
    timeout: float = TIMEOUT,
    launcher: Sequence[str] = (),
    attempts: int = 1,
    python: str | None = None,
) -> Verification:
    """What `verify` says; that itself where it is about NCCL, another Python or a rank's death."""
    dies = finding is not None and finding.symptom == "rank_death"
    if backend != "gloo" or dies or python is not None:
        return verify(
            script,
            world_size,
            backend,
            finding,
            timeout=timeout,
            launcher=launcher,
            attempts=attempts,
            python=python,
        )
    for _ in range(attempts):
        seen = _run(script, world_size, finding, timeout, launcher[-1] if launcher else "")
        if seen.outcome != "not reproduced":
            break
    return seen


def _run(
    script: Path, world_size: int, finding: Finding | None, timeout: float, injection: str
) -> Verification:
    server = ForkServer.get(gpus=False)
    began = time.monotonic()
    with ExitStack() as stack:
        output = stack.enter_context(tempfile.TemporaryFile())
        pairs = [socket.socketpair() for _ in range(world_size)]
        for ours, theirs in pairs:
            stack.enter_context(ours)
            stack.enter_context(theirs)
        fds = [fd for _, theirs in pairs for fd in (theirs.fileno(), output.fileno())]
        pids = server.fork("tests.injected.forked:main", _parts(script, world_size, injection), fds)
        try:
            ends = _ends(server, pids, began + timeout)
        finally:
            server.signal(pids, signal.SIGKILL)
        output.seek(0)
        text = output.read().decode(errors="replace")
    code = None if None in ends else int(any(ends))
    outcome, reason = judged(code, text, finding, timeout)
    seconds = time.monotonic() - began
    return Verification(
        outcome=outcome, reason=reason, exit_code=code, seconds=seconds, output=text[-TAIL:]
    )


def _ends(server: ForkServer, pids: Sequence[int], until: float) -> list[int | None]:
    """The exit codes; once one is not 0 the others have a moment left, as under torchrun."""
    ends: dict[int, int | None] = dict.fromkeys(pids)
    while None in ends.values() and time.monotonic() < until:
        for pid in [pid for pid, code in ends.items() if code is None]:
            ends[pid] = server.await_end(pid, 0.05)
            if ends[pid]:
                until = min(until, time.monotonic() + MOMENT)
    if any(ends.values()):
        return [code or 0 for code in ends.values()]
    return list(ends.values())


def _parts(script: Path, world_size: int, injection: str) -> list[Part]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world_size)}
    return [
        Part(
            script=str(script),
            injection=injection,
            environment={**told, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(world_size)
    ]


def main(given: bytes, channel: socket.socket) -> None:
    """One rank, in the process that was forked for it."""
    from fsdpfuzz.ranks import under_injection

    part = msgspec.json.decode(given, type=Part)
    os.environ.update(part.environment)
    sys.argv = [part.script]
    try:
        if part.injection:
            under_injection.main(part.injection, part.script)
        else:
            runpy.run_path(part.script, run_name="__main__")
    except SystemExit as end:
        # As an interpreter ends that runs the script alone.
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
