"""Runs the command line in a process of its own, from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Exit code 97 if a forbidden module was imported into the controller.
PROGRAM = """
import sys
from fsdpfuzz.cli import main
code = main()
if {"torch", "hypothesis"} & set(sys.modules):
    sys.exit(97)
sys.exit(code)
"""


def fsdpfuzz(
    *arguments: str | Path,
    cwd: Path,
    program: str = PROGRAM,
    seconds: float = 240,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """What the command prints and its exit code; 97 if it imported torch or Hypothesis."""
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **variables},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
