"""How much memory this process and its ranks may use, from what Linux tells."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import msgspec

_UNLIMITED = 1 << 60


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes; 0 where unknown or unlimited."""

    physical: int = 0
    available: int = 0
    cgroup: int = 0
    """The smallest limit of the control groups that this process is in."""
    address_space: int = 0
    """RLIMIT_AS."""
    shared: int = 0
    """Size of /dev/shm, which NCCL uses between GPUs of one host."""

    @property
    def usable(self) -> int:
        """The smallest that is known."""
        known = (self.physical, self.available, self.cgroup, self.address_space)
        return min((size for size in known if size), default=0)


def memory_limits(root: Path = Path("/")) -> Memory:
    """What applies to this process; ``root`` is where /proc, /sys and /dev are looked for."""
    told = _meminfo(root / "proc/meminfo")
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return Memory(
        physical=told.get("MemTotal", 0),
        available=told.get("MemAvailable", 0),
        cgroup=_cgroup(root),
        address_space=0 if soft == resource.RLIM_INFINITY else soft,
        shared=_size(root / "dev/shm"),
    )


def in_words(size: int) -> str:
    """``512 MiB``, ``1.5 GiB``."""
    if size < 1 << 30:
        return f"{size / (1 << 20):.0f} MiB"
    return f"{size / (1 << 30):.1f} GiB"


def _meminfo(path: Path) -> dict[str, int]:
    """Name to bytes."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return {}
    rows = (line.replace(":", " ").split() for line in lines)
    return {row[0]: int(row[1]) * 1024 for row in rows if len(row) == 3 and row[1].isdigit()}


def _cgroup(root: Path) -> int:
    """The smallest limit from this process's group up to the outermost that can be seen."""
    limits: list[int] = []
    for mount, own, name in _groups(root):
        parts = own.split("/") if own else []
        groups = [mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
        limits += [limit for group in groups for limit in _limit(group / name)]
    return min(limits, default=0)


def _groups(root: Path) -> list[tuple[Path, str, str]]:
    """For both kinds of control groups: where they are, this process's own, the limit's file."""
    unified, old = root / "sys/fs/cgroup", root / "sys/fs/cgroup/memory"
    found = [(unified, "", "memory.max"), (old, "", "memory.limit_in_bytes")]
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return found
    for line in lines:
        kinds, _, own = line.partition(":")[2].partition(":")
        own = own.strip("/")
        if ".." in own.split("/"):  # the group of another namespace: its files are not ours to see
            continue
        if not kinds:
            found.append((unified, own, "memory.max"))
        elif "memory" in kinds.split(","):
            found.append((old, own, "memory.limit_in_bytes"))
    return found


def _limit(path: Path) -> list[int]:
    try:
        value = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # not there, or "max"
        return []
    return [value] if value < _UNLIMITED else []


def _size(path: Path) -> int:
    try:
        told = os.statvfs(path)
    except OSError:
        return 0
    return told.f_frsize * told.f_blocks
