"""A fork server that a process has from another one, with torch loaded already."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdpfuzz.forkserver import ForkServer, Lent
from fsdpfuzz.forkserver._adopted import Adopted
from fsdpfuzz.pool import Pool
from tests.misbehaviour import quick

pytestmark = pytest.mark.alone


def parent_of(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def gone(pid: int) -> bool:
    """Whether a process has ended, within some seconds."""
    end = time.monotonic() + 20.0
    while time.monotonic() < end:
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    """The server of this process, alone of its kind."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    server = ForkServer.get(gpus=False)
    yield server
    server.close()
    ForkServer.get(gpus=False).close()


@pytest.fixture
def lent(first: ForkServer) -> Lent:
    found = ForkServer.lend(gpus=False, python=None)
    assert found is not None
    return found


def adopted(lent: Lent) -> ForkServer:
    ForkServer.adopt(lent, gpus=False, python=None)
    return ForkServer.get(gpus=False)


def test_ranks_are_forked_by_the_server_that_was_lent(first: ForkServer, lent: Lent) -> None:
    server = adopted(lent)
    assert server is not first
    with Pool(2, "gloo") as pool:
        assert pool.run(quick()).clean
        (parent,) = {parent_of(pid) for pid in pool.pids}
        assert isinstance(first._process, subprocess.Popen)
        assert parent_of(parent) == first._process.pid
        assert Path(lent.home).is_dir()
        server.close()
    assert gone(parent)
    assert not Path(lent.home).exists()
    # The one that it came from serves on.
    first.drain()
    assert not first.lost


def test_it_outlives_the_server_that_it_came_from(first: ForkServer, lent: Lent) -> None:
    server = adopted(lent)
    with Pool(2, "gloo") as pool:
        assert pool.run(quick()).clean
        first.close()
        assert pool.run(quick()).clean
        assert pool.restarts == 0
    server.close()


def test_one_that_dies_takes_its_ranks_along_and_another_is_started(lent: Lent) -> None:
    server = adopted(lent)
    with Pool(2, "gloo") as pool:
        assert pool.run(quick()).clean
        ranks = pool.pids
        os.kill(parent_of(ranks[0]), signal.SIGKILL)
        assert all(gone(pid) for pid in ranks)
        assert pool.run(quick()).clean
        assert server.lost
        assert parent_of(parent_of(pool.pids[0])) == os.getpid()
    assert not Path(lent.home).exists()


def test_one_that_nobody_adopts_ends_with_its_connection(lent: Lent) -> None:
    end = time.monotonic() + 20.0
    while not Path(lent.home).exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    lent.close()
    while Path(lent.home).exists():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_server_that_comes_to_no_good_start_is_not_adopted(first: ForkServer) -> None:
    ours, theirs = os.pipe()
    os.close(theirs)
    unheard = os.dup(ours)
    before = ForkServer.get(gpus=False)
    ForkServer.adopt(Lent(home="/nowhere/x", control=ours, errors=unheard), gpus=False, python=None)
    assert ForkServer.get(gpus=False) is before


def test_there_is_none_to_lend_where_none_was_started(first: ForkServer) -> None:
    first.close()
    assert ForkServer.lend(gpus=False, python=None) is None


def test_a_process_that_is_no_child_is_ended_and_awaited() -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        process = Adopted()
        process.wait(0.0)
        process.begin(child)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.kill()
        process.wait(20.0)
        # It may have ended before, or twice.
        process.kill()
    finally:
        os.waitpid(child, 0)
