"""A model that is moved, or cast, and back again between iterations."""

from __future__ import annotations

from fsdpfuzz.case.operations import Convert
from fsdpfuzz.case.operations.convert import hinders
from fsdpfuzz.strategies.drawing import LOTS
from fsdpfuzz.strategies.operations.program import Program

_WHEN = range(LOTS - 39, LOTS - 31)
"""Next to where `apply` is drawn; see `Program.seldom`."""


def draw(program: Program) -> None:
    """One or two: in any gap, or between the last backward of an iteration and its step.

    Shrinks towards none, then towards one before the first iteration.
    """
    d = program.d
    if program.seldom not in _WHEN or d.a.fsdp1:
        return
    for _ in range(d.between(1, 2)):
        gap, device, behind = d.between(0, 127), d.chance(50), d.chance(40)
        asked = Convert(what="device") if device else Convert()
        if any(b.fsdp1 or hinders(b, asked.what) for b in program.drawn.under_each_plan):
            continue
        at = gap % len(program.gaps)
        if not behind or not at:
            program.gaps[at].append(asked)
            continue
        iteration = program.iterations[at - 1]
        last = max(i for i, op in enumerate(iteration) if op.gives_gradients)
        iteration.insert(last + 1, asked)
