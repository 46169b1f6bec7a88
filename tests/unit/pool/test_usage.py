"""What the kernel says of a process's threads."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fsdpfuzz.pool._usage import Usage, usage_of


def spinning(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", f"print(end='', flush=True)\n{code}"])


def until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.01)


def test_a_process_that_computes_runs_and_one_that_sleeps_does_not() -> None:
    busy, idle = spinning("while True: pass"), spinning("import time; time.sleep(600)")
    try:
        until(lambda: usage_of(busy.pid).ran > 0.3)
        until(lambda: Path(f"/proc/{idle.pid}/wchan").exists())
        before = usage_of(busy.pid)
        until(lambda: usage_of(busy.pid).since(before).ran > 0.1)
        assert usage_of(idle.pid).ran < usage_of(busy.pid).ran
    finally:
        for process in (busy, idle):
            process.kill()
            process.wait()
    assert usage_of(busy.pid) == Usage()


def thread(folder: Path, number: int, state: str, schedstat: str | None) -> None:
    made = folder / "7" / "task" / str(number)
    made.mkdir(parents=True)
    (made / "stat").write_text(f"{number} (a (name) R) {state} 1 2 3\n")
    if schedstat is not None:
        (made / "schedstat").write_text(schedstat)


def test_threads_are_added_up(tmp_path: Path) -> None:
    thread(tmp_path, 7, "S", "2000000000 1000000000 5\n")
    thread(tmp_path, 8, "R", "500000000 250000000 5\n")
    assert usage_of(7, processes=tmp_path) == Usage(2.5, 1.25)


def test_a_thread_that_waits_for_a_disk_blocks(tmp_path: Path) -> None:
    thread(tmp_path, 7, "D", "1 1 5\n")
    assert usage_of(7, processes=tmp_path).blocked


def test_a_kernel_that_keeps_no_times_leaves_doubt_about_what_could_run(tmp_path: Path) -> None:
    thread(tmp_path, 7, "S", None)
    assert usage_of(7, processes=tmp_path) == Usage()
    thread(tmp_path, 8, "R", None)
    assert usage_of(7, processes=tmp_path) == Usage(blocked=True)


def test_a_thread_that_ended_takes_its_times_with_it() -> None:
    assert Usage(1.0, 1.0).since(Usage(2.0, 0.25)) == Usage(0.0, 0.75)
