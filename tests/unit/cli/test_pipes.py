"""Output into a pipe whose reader has gone, as with ``fsdpfuzz corpus list | head -1``."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["schema"], ["corpus", "list"], ["corpus", "known", "list"]]
)
def test_a_command_ends_quietly_once_nobody_reads(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "fsdpfuzz", *arguments],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
