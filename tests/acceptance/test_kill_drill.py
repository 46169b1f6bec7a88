"""A controller that is killed loses no finding and leaves no half-written file.

Three random moments by default; ``FSDPFUZZ_KILLS=10`` takes more, ``FSDPFUZZ_KILL_SEED`` others.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdpfuzz.corpus import RESULT, read_entry

pytestmark = pytest.mark.alone


ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("FSDPFUZZ_KILLS", "3"))
SEED = int(os.environ.get("FSDPFUZZ_KILL_SEED", "0"))
SECONDS = 120.0


class Run:
    """A short run with findings, in a process group of its own."""

    def __init__(self, folder: Path) -> None:
        self.output = folder / "out"
        self.result = folder / "result.json"
        options = {
            "--inject": "tests.injected.lies:install",
            "--profile": "smoke",
            "--api": "fsdp2",
            "--backend": "gloo",
            "--max-examples": "12",
            "--seed": "1",
            "--output": str(self.output),
            "--json": str(self.result),
        }
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "fsdpfuzz",
                "run",
                "parity",
                *(x for o in options.items() for x in o),
            ],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def has_begun(self) -> float:
        """Waits for the first case; the time."""
        end = time.monotonic() + SECONDS
        while not any(self.output.glob("inflight-*.json")) and self.process.poll() is None:
            assert time.monotonic() < end, "the run did not begin"
            time.sleep(0.005)
        return time.monotonic()

    def keys(self) -> set[str]:
        """What the run found, when it has ended; scripts do not show what ranks lie about."""
        assert self.process.wait(SECONDS) == 1
        result = json.loads(self.result.read_text())
        return {found["key"] for found in (*result["findings"], *result["unconfirmed"])}

    def kill(self) -> bool:
        """``kill -9``; whether the run had not ended before."""
        self.process.send_signal(signal.SIGKILL)
        return self.process.wait(SECONDS) == -signal.SIGKILL


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], float]:
    """The keys of a run that nobody kills, and how long it takes from its first case on."""
    run = Run(tmp_path_factory.mktemp("undisturbed"))
    began = run.has_begun()
    keys = run.keys()
    return keys, time.monotonic() - began


def moments() -> Iterator[float]:
    """Parts of the run's time, one in each of as many equal stretches."""
    chance = random.Random(SEED)
    for i in range(KILLS):
        yield round((i + chance.random()) / KILLS, 3)


@pytest.mark.parametrize("moment", list(moments()))
def test_a_rerun_after_a_kill_finds_the_same(
    moment: float, undisturbed: tuple[set[str], float], tmp_path: Path
) -> None:
    keys, seconds = undisturbed
    assert len(keys) >= 2
    killed = Run(tmp_path)
    killed.has_begun()
    time.sleep(moment * seconds)
    was_running = killed.kill()
    assert was_running or moment > 0.5, "the run was too short to be killed"
    assert_whole(killed.output)
    assert Run(tmp_path).keys() == keys
    assert_whole(killed.output)
    left = {path.name for path in killed.output.rglob("*") if path.suffix in (".tmp", ".json")}
    assert not {name for name in left if name.startswith((".", "inflight-"))}, left


def assert_whole(output: Path) -> None:
    """Every case in the folder can be read, and every result."""
    for path in output.rglob("*.json"):
        if path.name == RESULT:
            json.loads(path.read_bytes())
        else:
            read_entry(path)
