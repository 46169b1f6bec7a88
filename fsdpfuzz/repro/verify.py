"""Runs a script under torchrun and says whether it shows what it should."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from fsdpfuzz.verdict import Finding

TIMEOUT = 180.0
TAIL = 4_000
_REPRODUCED = re.compile(r"(?:rank \d+: )?reproduced: .*$", re.MULTILINE)
"""Not from a line's or a word's start: what the ranks print may come one into the other."""
_NOT = re.compile(r"not reproduced")
_HANG = re.compile(r"^Timeout \([\d:.]+\)!", re.MULTILINE)
_DEATH = re.compile(r"exitcode\s*:\s*(-?\d+)")
_MARK = "FSDPFUZZ_VERIFY"
"""Environment variable by which the processes of a run are known."""
_GRACE = 20.0

Outcome = Literal["reproduced", "not reproduced", "failed otherwise", "could not run"]


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What came of running a script."""

    outcome: Outcome
    reason: str = ""
    """The line that shows the finding, or why it did not come to that."""
    exit_code: int | None = None
    """Of torchrun; None if it had to be ended, or could not be started."""
    seconds: float = 0.0
    output: str = ""
    """The end of what was printed."""

    @property
    def reproduced(self) -> bool:
        """Whether the finding showed."""
        return self.outcome == "reproduced"


def verify(
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
    """Runs ``script`` on ``world_size`` ranks and judges exit code and output.

    ``backend`` ``gloo`` hides the GPUs, by whose number the script chooses. ``finding`` tells
    what counts: the death of a rank is only looked for in a script about one. ``launcher`` is
    put between torchrun's options and the script: a module that runs it in another way.
    ``attempts`` is how often a script is run until it reproduces, for a race; ``python``
    is the Python that runs it, by default the controller's.
    Never raises for anything that the script does; all its processes are gone afterwards.
    """
    command = [
        *(python or sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(world_size), *launcher, os.fspath(script)),
    ]
    for _ in range(attempts):
        seen = _run(command, backend, finding, timeout)
        if seen.outcome != "not reproduced":
            break
    return seen


def _run(command: list[str], backend: str, finding: Finding | None, timeout: float) -> Verification:
    mark = uuid.uuid4().hex
    environment = {**os.environ, _MARK: mark}
    environment["OMP_NUM_THREADS"] = "1"  # as torchrun sets it, whatever is set here
    # What a rank prints in one go must not be cut by what another one prints.
    environment.pop("PYTHONUNBUFFERED", None)
    if backend == "gloo":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    began = time.monotonic()
    code: int | None = None
    # A file, not a pipe: a rank that outlives torchrun would keep the pipe open, and the reader in
    # it.
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            return Verification(outcome="could not run", reason=f"torchrun: {error}")
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout)
        finally:
            _end(process, mark)
        output.seek(0)
        text = output.read().decode(errors="replace")
    outcome, reason = judged(code, text, finding, timeout)
    return Verification(
        outcome=outcome,
        reason=reason,
        exit_code=code,
        seconds=time.monotonic() - began,
        output=text[-TAIL:],
    )


def judged(
    code: int | None, text: str, finding: Finding | None, timeout: float
) -> tuple[Outcome, str]:
    """What a run came to, from its exit code and output, and the line that says so.

    ``code`` is None for a run that had to be ended after ``timeout`` seconds.
    """
    symptom = finding.symptom if finding is not None else ""
    # Before the exit code: torchrun ends with 1 whatever made a rank fail.
    told = _REPRODUCED.search(text)
    if told is not None:
        return "reproduced", told[0][:500]
    hung = _HANG.search(text)
    waits = symptom == "hang" or (finding is not None and finding.kind == "hang")
    if hung is not None and waits:
        return "reproduced", f"the ranks gave no answer: {hung[0]}"
    if code is None:
        return "failed otherwise", f"no end within {timeout:g} s"
    if code == 0:
        if _NOT.search(text):
            return "not reproduced", ""
        return "failed otherwise", "it ended without a verdict"
    if symptom == "rank_death" and finding is not None:
        codes = {int(found[1]) for found in _DEATH.finditer(text)}
        wanted = finding.kind.rpartition(":")[2]
        if any(died < 0 or str(died) == wanted for died in codes):
            return "reproduced", f"a rank died: exit codes {sorted(codes)}"
    if "No module named" in text:
        return "could not run", _last_error(text)
    return "failed otherwise", _last_error(text)


def _last_error(text: str) -> str:
    """The last line that names an exception, torchrun's own report left out."""
    lines = [
        line.partition("]:")[2] or line
        for line in text.splitlines()
        if re.search(r"\b\w+(Error|Exception)\b: ", line) and "ChildFailedError" not in line
    ]
    return lines[-1].strip()[:500] if lines else "no error was printed"


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """Ends torchrun, and the ranks, which have sessions of their own."""
    if process.poll() is None:
        process.terminate()  # torchrun then ends its ranks
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    for pid in _marked(mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)


def _marked(mark: str) -> list[int]:
    """The processes that have the mark in their environment."""
    wanted = f"{_MARK}={mark}".encode()
    found = []
    # torchrun starts ranks in sessions of their own, so no process group holds them all.
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found
