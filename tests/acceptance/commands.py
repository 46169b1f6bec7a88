"""Runs the command line in a process of its own, from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fsdpfuzz.forkserver import ForkServer
from fsdpfuzz.pool import as_argument, lend

ROOT = Path(__file__).resolve().parents[2]
SERVER = "FSDPFUZZ_LENT_TO_A_TEST"

# Exit code 97 if a forbidden module was imported into the controller.
PROGRAM = """
import sys
from fsdpfuzz.cli import main
code = main()
if {"torch", "hypothesis"} & set(sys.modules):
    sys.exit(97)
sys.exit(code)
"""
MODULE = """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""What ``python -m`` does."""
_ADOPTS = f"""
import os
if (server := os.environ.pop({SERVER!r}, None)) is not None:
    from fsdpfuzz.pool import adopt
    adopt(server, "gloo")
"""


def fsdpfuzz(
    *arguments: str | Path,
    cwd: Path,
    program: str = PROGRAM,
    seconds: float = 240,
    lent: bool = True,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """What the command prints and its exit code; 97 if it imported torch or Hypothesis."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **variables}
    words = [str(argument) for argument in arguments]
    return started(program, *words, cwd=cwd, environ=environ, seconds=seconds, lent=lent)


def started(
    program: str,
    *arguments: str,
    cwd: Path,
    environ: Mapping[str, str],
    seconds: float = 240,
    lent: bool = True,
) -> subprocess.CompletedProcess[str]:
    """What Python prints of a program, and its exit code.

    Its ranks are forked by a server that is ``lent`` to it: importing torch takes longer than most
    commands. Without, it starts one as it does for users; some tests of each kind are so.
    """
    with _server(lent) as (told, fds):
        return subprocess.run(
            [sys.executable, "-c", _ADOPTS + program if lent else program, *arguments],
            cwd=cwd,
            env={**environ, **told},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            pass_fds=fds,
        )


@contextmanager
def _server(lent: bool) -> Iterator[tuple[dict[str, str], Sequence[int]]]:
    if lent:
        # Started once, for all commands of this process.
        ForkServer.get(gpus=False)
    server = lend("gloo") if lent else None
    if server is None:
        yield {}, ()
        return
    try:
        yield {SERVER: as_argument(server)}, (server.control, server.errors)
    finally:
        server.close()
