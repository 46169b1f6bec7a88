"""How forwards leave units, changed on the way: `fsdpfuzz.strategies.reshard_set` draws it."""

from __future__ import annotations

from fsdpfuzz.strategies.operations.program import Program


def draw(program: Program) -> None:
    """None here, as not every torch offers what it takes. Shrinks towards none."""
