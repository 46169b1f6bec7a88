"""Backward. Each operation has a file here, also one that is drawn with others."""

from __future__ import annotations

from fsdpfuzz.case import Backward, Op
from fsdpfuzz.case.operations import AverageUnmanaged
from fsdpfuzz.strategies.operations.program import Program


def draw(program: Program) -> None:
    """Every iteration has one already; `forward` adds those of further micro-batches.

    Now and then one of them goes back twice, seldom in fsdp1, which is known not to be able to.
    Shrinks towards none that does.
    """
    d = program.d
    wanted, which, where = d.chance(1 if d.a.fsdp1 else 7), d.between(0, 13), d.between(0, 13)
    again = not any(c.kind == "composable" for c in d.case.checkpoints) and d.a.imported is None
    if not wanted or d.parting != "never" or not program.iterations or not again:
        return
    iteration = program.iterations[which % len(program.iterations)]
    backwards = [i for i, op in enumerate(iteration) if op.gives_gradients]
    iteration[backwards[where % len(backwards)]] = Backward(again=True)


def after_reductions(ops: list[Op]) -> list[int]:
    """Where in an iteration gradients have just been reduced, the last place first.

    By FSDP and, if there is more to reduce, by the user.
    """
    found, synchronised = [], True
    for i, op in enumerate(ops):
        if op.waits:
            synchronised = op.reduces
        if op.gives_gradients and synchronised:
            averaged = any(isinstance(then, AverageUnmanaged) for then in ops[i + 1 : i + 2])
            found.append(i + 1 + averaged)
    return found[::-1]
