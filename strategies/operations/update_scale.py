"""The scale of gradients, which follows a step: `fsdpfuzz.strategies.grad_scaler` draws it."""

from __future__ import annotations

from fsdpfuzz.strategies.operations.program import Program


def draw(program: Program) -> None:
    """None here, as it goes with a scaler alone. Shrinks towards none."""
