"""What repeats in a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsdpfuzz.spec import Backward, Forward, Op, ZeroGrad


@dataclass(frozen=True, slots=True)
class Repeated:
    """``block`` several times over, then ``rest``; the block is empty if nothing repeats."""

    block: tuple[Op, ...]
    times: int
    rest: tuple[Op, ...]

    @property
    def length(self) -> int:
        """How many operations have to be written out."""
        return len(self.block) + len(self.rest)


def repeated(program: Sequence[Op]) -> Repeated:
    """The shortest way to write a program with one loop at its start.

    Steps often reset gradients between them. A reset before the first one changes nothing
    and makes all steps alike.
    """
    ops = tuple(program)
    found = [Repeated((), 0, ops), *_loops(ops)]
    reset = next((op for op in ops if isinstance(op, ZeroGrad)), None)
    if reset is not None and not isinstance(ops[0], ZeroGrad):
        found += _loops((reset, *ops))
    return min(found, key=lambda shape: shape.length)


def _loops(ops: tuple[Op, ...]) -> list[Repeated]:
    found = []
    for size in range(1, len(ops) // 2 + 1):
        block, times = ops[:size], 1
        while ops[times * size : (times + 1) * size] == block:
            times += 1
        if times > 1 and _is_closed(block):
            found.append(Repeated(block, times, ops[times * size :]))
    return found


def _is_closed(block: Sequence[Op]) -> bool:
    """Whether a backward follows each forward that waits for one, none before its forward."""
    pending = 0
    for op in block:
        if isinstance(op, Forward) and waits(op):
            pending += 1
        elif isinstance(op, Backward):
            if not pending:
                return False
            pending = 0
    return pending == 0


def waits(op: Forward) -> bool:
    """Whether the loss waits for a backward."""
    return op.grad and not op.drop
