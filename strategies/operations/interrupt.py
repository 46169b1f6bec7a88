"""Forwards that an exception ends."""

from __future__ import annotations

from fsdpfuzz.case.operations import Unshard
from fsdpfuzz.case.operations.interrupt import Interrupt, goes_on, raising
from fsdpfuzz.case.units.precision import computed_in
from fsdpfuzz.strategies.drawing import LOTS
from fsdpfuzz.strategies.operations.program import Program

_WHEN = range(LOTS - 23, LOTS - 15)
"""Next to where `rescale` is drawn; see `Program.seldom`."""


def draw(program: Program) -> None:
    """One or two before some forward with a backward.

    Shrinks towards none, then towards one by the root as it begins.
    """
    d = program.d
    if program.seldom not in _WHEN or not program.iterations:
        return
    iteration = d.pick(program.iterations)
    at, which, done, twice = d.between(0, 13), d.between(0, 127), d.chance(40), d.chance(15)
    where = [i for i, op in enumerate(iteration) if goes_on(d.a, op)]
    # What is gathered by hand is so for the very next forward.
    where = [i for i in where if not i or not isinstance(iteration[i - 1], Unshard)]
    modules = raising(d.a)
    # Of what computes in less precision fsdp1 then reduces little, as behind any forward that no
    # backward followed.
    low = d.a.fsdp1 and any(computed_in(unit) for unit in d.case.plan.units)
    if where and modules and (which % 4 == 3 or not low):
        module, i = modules[which % len(modules)], where[at % len(where)]
        ends = (done, not done) if twice else (done,)
        iteration[i:i] = [Interrupt(module=module, done=end) for end in ends]
