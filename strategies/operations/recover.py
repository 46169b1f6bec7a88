"""Iterations that an exception ends: `fsdpfuzz.strategies.recovery` draws them."""

from __future__ import annotations

from fsdpfuzz.strategies.operations.program import Program


def draw(program: Program) -> None:
    """None here, as not every torch offers what it takes. Shrinks towards none."""
