"""Steps of the optimizer."""

from __future__ import annotations

from fsdpfuzz.case import Op, Step
from fsdpfuzz.strategies.operations.program import Program


def draw(program: Program) -> None:
    """One after each iteration; in few programs none. Shrinks towards one after each."""
    if program.d.chance(4, exec_order=25) and program.d.parting == "never":
        return
    for iteration in program.iterations:
        iteration.append(Step())


def gaps_after_a_step(program: Program) -> list[list[Op]]:
    """The gaps right behind an iteration that steps."""
    return [
        gap
        for gap, before in zip(program.gaps[1:], program.iterations, strict=True)
        if any(op.steps_optimizer for op in before)
    ]
