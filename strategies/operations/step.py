"""Steps of the optimizer."""

from __future__ import annotations

from fsdpfuzz.case import Op, Step
from fsdpfuzz.strategies.operations.forward import EVALUATION
from fsdpfuzz.strategies.operations.program import Program

EVALUATED = 1
"""Of 100 programs, those that evaluate between a backward and the step."""


def draw(program: Program) -> None:
    """One after each iteration; in few programs none, or behind an evaluation.

    Which leaves some units whole while they change: known of both APIs, so it is rare.

    Shrinks towards one after each.
    """
    d = program.d
    if d.chance(4, exec_order=25) and d.parting == "never":
        return
    evaluated = d.chance(EVALUATED) and d.parting == "never"
    for iteration in program.iterations:
        iteration += [EVALUATION, Step()] if evaluated else [Step()]


def gaps_after_a_step(program: Program) -> list[list[Op]]:
    """The gaps right behind an iteration that steps."""
    return [
        gap
        for gap, before in zip(program.gaps[1:], program.iterations, strict=True)
        if any(op.steps_optimizer for op in before)
    ]
