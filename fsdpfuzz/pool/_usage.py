"""What a rank's process had of the processors, and what it wanted: told by the kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NANOSECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds since the process began, over all threads that it has."""

    ran: float = 0.0
    waited: float = 0.0
    """For which threads could have run, but stood in line for a processor."""
    blocked: bool = False
    """Whether a thread waits for a disk, or for memory that was paged out, just now."""

    def since(self, before: Usage) -> Usage:
        """What came since; a thread that ended takes what it had with it."""
        return Usage(
            max(0.0, self.ran - before.ran), max(0.0, self.waited - before.waited), self.blocked
        )


def usage_of(pid: int, *, processes: Path = Path("/proc")) -> Usage:
    """Of a process; nothing of one that is gone."""
    ran = waited = 0.0
    blocked = False
    for state, times in _threads(processes / str(pid) / "task"):
        if times:
            ran += int(times[0]) * _NANOSECONDS
            waited += int(times[1]) * _NANOSECONDS
        # A kernel that keeps no times: what could run may have waited all the time.
        blocked = blocked or state == "D" or (state == "R" and not times)
    return Usage(ran, waited, blocked)


def _threads(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """State and times of each thread."""
    try:
        threads = list(folder.iterdir())
    except OSError:
        return
    for thread in threads:
        try:
            # Behind the last parenthesis: a thread's name may hold some itself.
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue  # it has just ended
        try:
            # Of each thread: the file of the process tells of its main thread alone.
            times = (thread / "schedstat").read_text().split()
        except OSError:
            times = []
        yield state, times


def load_of_a_core() -> float:
    """How many processes wanted each core over the last minute; 0.0 where that is not told."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return 0.0
