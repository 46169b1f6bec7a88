"""Forwards that an exception ends."""

from __future__ import annotations

from fsdpfuzz.case.operations import Unshard
from fsdpfuzz.case.operations.interrupt import Interrupt, goes_on, raising
from fsdpfuzz.strategies.operations.program import Program


def draw(program: Program) -> None:
    """One or two before some forward with a backward.

    Shrinks towards none, then towards one by the root as it begins.
    """
    d = program.d
    if d.parting != "never" or not program.iterations or not d.chance(6):
        return
    iteration = d.pick(program.iterations)
    at, which, done, twice = d.between(0, 13), d.between(0, 127), d.chance(40), d.chance(15)
    where = [i for i, op in enumerate(iteration) if goes_on(d.a, op)]
    # What is gathered by hand is so for the very next forward.
    where = [i for i in where if not i or not isinstance(iteration[i - 1], Unshard)]
    modules = raising(d.a)
    if where and modules:
        interrupt = Interrupt(module=modules[which % len(modules)], done=done)
        i = where[at % len(where)]
        iteration[i:i] = [interrupt] * (1 + twice)
