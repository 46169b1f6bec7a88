"""Backward. Each operation has a file here, also one that is drawn with others."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpfuzz.case import Backward, Op
from fsdpfuzz.case.operations import AverageUnmanaged
from fsdpfuzz.strategies.operations.program import Program


def draw(program: Program) -> None:
    """Every iteration has one already; `forward` adds those of further micro-batches.

    Now and then one of them goes back twice, and where several losses wait each may have one of
    its own; seldom in fsdp1, which is known not to be able to. Shrinks towards none that does.
    """
    d = program.d
    wanted, which, where = d.chance(1 if d.a.fsdp1 else 7), d.between(0, 13), d.between(0, 13)
    several = [
        (iteration, i) for iteration in program.iterations for i in _of_several_losses(iteration)
    ]
    each = d.chance(8 if d.a.fsdp1 else 75) if several else False
    if any(c.kind == "composable" for c in d.case.checkpoints) or d.parting != "never":
        return
    if each:
        iteration, i = several[which % len(several)]
        iteration[i] = Backward(each=True)
    elif wanted and program.iterations and d.a.imported is None:
        iteration = program.iterations[which % len(program.iterations)]
        backwards = [i for i, op in enumerate(iteration) if op.gives_gradients]
        iteration[backwards[where % len(backwards)]] = Backward(again=True)


def _of_several_losses(ops: list[Op]) -> Iterator[int]:
    """Where in an iteration a backward has more than one loss to go back from."""
    waiting = 0
    for i, op in enumerate(ops):
        if op.gives_gradients:
            if waiting > 1:
                yield i
            waiting = 0
        waiting += op.waits


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
