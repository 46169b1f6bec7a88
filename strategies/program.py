"""The training program: iterations, and what comes between them."""

from __future__ import annotations

from fsdpfuzz.case import OPERATIONS, Backward, Forward
from fsdpfuzz.strategies.drawing import Drawing, choosing
from fsdpfuzz.strategies.operations.program import (
    MAX_ITERATIONS,
    Program,
    operation_strategies,
)


def draw(d: Drawing) -> None:
    """One to three iterations, to which each operation adds what it is for.

    A program without any training saves and loads only. Shrinks towards forward, backward, step.
    """
    program = Program(d)
    for _ in range(d.between(1, MAX_ITERATIONS) if d.trains else 0):
        program.iterations.append([Forward(), Backward()])
        program.gaps.append([])
    strategies = operation_strategies()
    for kind in OPERATIONS:
        with choosing(kind):
            strategies[kind](program)
    d.put(program=program.operations())
