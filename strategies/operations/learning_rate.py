"""Learning rates that change in the course of a training."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpfuzz.case import Op
from fsdpfuzz.case.operations.learning_rate import LearningRate
from fsdpfuzz.strategies.operations.program import Program

_FACTORS = (0.5, 2.0, 0.1)


def draw(program: Program) -> None:
    """Once or twice, right before or after a step; after the last one only if something is saved.

    Most where the optimizer's state is, which it has to come back from.

    Shrinks towards none, then towards one that halves it before a step.
    """
    d = program.d
    saved = any(op.saves_optimizer or op.stores for op in program.operations())
    wanted, twice = d.chance(30 if saved else 10), d.chance(25)
    drawn = [(d.between(0, 5), d.pick(_FACTORS)) for _ in range(2)]
    if not wanted or d.case.optimizer is None:
        return
    for where, factor in drawn[: 1 + twice]:
        places = list(_places(program))
        if places:
            iteration, at = places[where % len(places)]
            iteration.insert(at, LearningRate(factor=factor))


def _places(program: Program) -> Iterator[tuple[list[Op], int]]:
    """Before each step, then after each that is followed by another one or by what is saved."""
    last = program.gaps[-1]
    stepping = [
        (iteration, i)
        for iteration in program.iterations
        for i, op in enumerate(iteration)
        if op.steps_optimizer
    ]
    yield from stepping
    saved = any(op.saves_optimizer or op.stores for op in last)
    for iteration, i in stepping if saved else stepping[:-1]:
        yield iteration, i + 1
