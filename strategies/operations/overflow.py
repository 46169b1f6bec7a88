"""A gradient that is no longer finite: `fsdpfuzz.strategies.grad_scaler` draws it."""

from __future__ import annotations

from fsdpfuzz.strategies.operations.program import Program


def draw(program: Program) -> None:
    """None here, as it goes with a scaler alone. Shrinks towards none."""
