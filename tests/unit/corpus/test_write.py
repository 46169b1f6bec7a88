from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fsdpfuzz.corpus import write_atomically
from fsdpfuzz.corpus._write import is_alive, started, sweep
from fsdpfuzz.errors import MachineError, UsageError

WRITER = """
import sys
from pathlib import Path
from fsdpfuzz.corpus import write_atomically
print("ready", flush=True)
i = 0
while True:
    i += 1
    write_atomically(Path(sys.argv[1]), str(i % 10).encode() * 200_000, durable=False)
"""


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "x.json"
    write_atomically(path, b"one")
    with path.open("rb") as before:
        write_atomically(path, b"two")
        assert before.read() == b"one"
    assert path.read_bytes() == b"two"
    assert names(path.parent) == ["x.json"]


def test_a_file_that_is_there_can_be_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "x.json"
    write_atomically(path, b"one", replace=False)
    with pytest.raises(UsageError, match=r"x\.json: is there already"):
        write_atomically(path, b"two", replace=False)
    assert path.read_bytes() == b"one"
    assert names(path.parent) == ["x.json"]


def test_of_several_writers_that_must_not_replace_one_succeeds(tmp_path: Path) -> None:
    path, wrote = tmp_path / "x.json", list[int]()

    def write(number: int) -> None:
        with contextlib.suppress(UsageError):
            write_atomically(path, bytes([number]) * 50_000, replace=False)
            wrote.append(number)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(wrote) == 1
    assert path.read_bytes() == bytes(wrote) * 50_000
    assert names(tmp_path) == ["x.json"]


def test_the_umask_decides_who_may_read(tmp_path: Path) -> None:
    previous = os.umask(0o027)
    try:
        write_atomically(tmp_path / "x", b"")
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    write_atomically(path, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MachineError, match="x: cannot be written: No space left on device"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["x"]


def test_a_folder_that_cannot_be_made_is_the_users_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"file/x: cannot be written"):
        write_atomically(tmp_path / "file" / "x", b"")


def test_a_killed_writer_leaves_a_whole_file(tmp_path: Path) -> None:
    """Killed ten times at some moment of a write; then its leftovers are swept away."""
    path = tmp_path / "x"
    for round_ in range(10):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.003 * round_)
            writer.kill()
        data = path.read_bytes() if path.exists() else b""
        assert len(data) in (0, 200_000)
        assert len(set(data)) <= 1
    assert path.exists()
    sweep(tmp_path)
    assert names(tmp_path) == ["x"]


def test_sweeping_spares_what_a_living_process_writes(tmp_path: Path) -> None:
    pid, start = os.getpid(), started(os.getpid())
    own = tmp_path / f".fsdpfuzz-{pid}-{start}-0.tmp"
    before = tmp_path / f".fsdpfuzz-{pid}-{start - 1}-0.tmp"
    other = tmp_path / ".fsdpfuzz-notes.tmp"
    for path in (own, before, other):
        path.touch()
    sweep(tmp_path)
    assert own.exists()
    assert other.exists()
    assert not before.exists()


def test_who_is_alive() -> None:
    pid = os.getpid()
    start = started(pid)
    assert start > 0
    assert is_alive(pid, start)
    assert is_alive(pid, 0)
    assert not is_alive(pid, start + 1), "a later process of the same number is another one"
    assert not is_alive(2**30, 0)
    with subprocess.Popen(["sleep", "60"]) as child:
        start = started(child.pid)
        assert is_alive(child.pid, start)
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(child.pid, start), "one that ended but was not reaped is dead"
