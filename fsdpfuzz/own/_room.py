"""The memory that a check of somebody's own model takes: said before it starts."""

from __future__ import annotations

from math import prod
from pathlib import Path

from fsdpfuzz.case import Imported
from fsdpfuzz.case.base import ranks_in_words
from fsdpfuzz.errors import MachineError

BYTES = 300
"""For each parameter on each rank: the model in float64, in float32 and as FSDP holds it, with
gradients, an optimizer's state, and what is kept of each operation to compare with. Measured were
260 over twenty programs of a model of nine million parameters."""
WORTH_A_WORD = 1 << 30
_GIB = 1 << 30
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def room_for(model: Imported, ranks: int, available: int | None = None) -> str:
    """What a model takes on so many ranks of this machine, in words; empty if next to nothing.

    :class:`MachineError` with the figures where it will not fit into the bytes that are
    ``available``, by default what the machine says.
    """
    number = sum(prod(p.shape) for m in model.modules for p in m.parameters if not p.tied)
    needed = number * BYTES * ranks
    if needed < WORTH_A_WORD:
        return ""
    free = available_memory() if available is None else available
    what = (
        f"your model has {number / 1e6:.1f} million parameters, which take about "
        f"{needed / _GIB:.1f} GiB on {ranks_in_words(ranks)}"
    )
    if free and needed > free:
        raise MachineError(
            f"{what}, and {free / _GIB:.1f} GiB are free: check a configuration with fewer and "
            "narrower layers, which has the same kinds of module and trains the same way, or give "
            "fewer ranks by --world-size"
        )
    return f"{what}, of {free / _GIB:.1f} GiB that are free"


def available_memory() -> int:
    """Bytes that are free here, within the limit of a container; 0 where nobody says."""
    found = []
    try:
        lines = _MEMINFO.read_text().splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")]
    except (OSError, ValueError, IndexError):
        pass
    try:
        # cgroup v2, where it says "max" for no limit, which is no number.
        most = int((_CGROUP / "memory.max").read_text())
        found.append(most - int((_CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):  # no container, or none with a limit
        pass
    # The smaller of both: a container may have less than the machine has free.
    return max(0, min(found, default=0))
