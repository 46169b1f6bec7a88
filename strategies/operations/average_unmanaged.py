"""Gradients of what no unit manages, which the user averages."""

from __future__ import annotations

from fsdpfuzz.case.operations.average_unmanaged import AverageUnmanaged, unmanaged
from fsdpfuzz.strategies.operations.backward import after_reductions
from fsdpfuzz.strategies.operations.program import Program


def ranks_agree(program: Program) -> bool:
    """Whether what no unit manages is the same on every rank all along."""
    d = program.d
    return not unmanaged(d.a) or not d.trains or program.holds(AverageUnmanaged)


def draw(program: Program) -> None:
    """After the last backward of every iteration, in half of the draws: what else needs one and
    the same model on all ranks comes with these alone. Shrinks towards none.
    """
    d = program.d
    if not unmanaged(d.a) or d.parting != "never" or not d.trains or not d.chance(50):
        return
    for iteration in program.iterations:
        for last in after_reductions(iteration)[:1]:
            iteration.insert(last, AverageUnmanaged())
