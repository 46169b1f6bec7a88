"""Train mode and eval mode."""

from __future__ import annotations

from fsdpfuzz.case import Forward, Mode
from fsdpfuzz.case.checkpoints import recomputed_running
from fsdpfuzz.strategies.operations.forward import checks_order
from fsdpfuzz.strategies.operations.program import Program


def draw(program: Program) -> None:
    """Around lone forwards, and now and then for a whole iteration. Shrinks towards none."""
    d = program.d
    if d.apart or recomputed_running(d.a):
        return
    for gap in program.gaps:
        lone = [i for i, op in enumerate(gap) if isinstance(op, Forward)]
        if lone and d.chance(85 if checks_order(program) else 50):
            gap[lone[0] : lone[-1] + 1] = [
                Mode(train=False),
                *gap[lone[0] : lone[-1] + 1],
                Mode(train=True),
            ]
    if program.iterations and d.chance(3):
        # Before the last iteration, and never back: a training that somebody forgot in eval mode.
        program.gaps[-2].append(Mode(train=False))
