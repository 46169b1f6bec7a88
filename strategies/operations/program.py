"""A training program while it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module

import msgspec

from fsdpfuzz.case import OPERATIONS, Anatomy, Op, anatomy
from fsdpfuzz.case.lacking import may_lack_backward
from fsdpfuzz.errors import ContractError
from fsdpfuzz.strategies.drawing import Drawing

MAX_ITERATIONS = 3


@dataclass(slots=True)
class Program:
    """Iterations, and what comes before, between and after them.

    In a gap no forward waits for its backward, and no gradient for its reduction.
    """

    d: Drawing
    iterations: list[list[Op]] = field(default_factory=list)
    gaps: list[list[Op]] = field(default_factory=lambda: [[]])
    seldom: int = 0
    """One choice for all that comes in few programs, which has at most one of it."""

    def operations(self) -> tuple[Op, ...]:
        """All of them, in order."""
        found = list(self.gaps[0])
        for iteration, gap in zip(self.iterations, self.gaps[1:], strict=True):
            found += [*iteration, *gap]
        return tuple(found)

    @property
    def between(self) -> list[list[Op]]:
        """The gaps with an iteration on both sides."""
        return self.gaps[1:-1]

    @property
    def drawn(self) -> Anatomy:
        """The case with the operations that are drawn by now."""
        return anatomy(msgspec.structs.replace(self.d.case, program=self.operations()))

    @property
    def lacks_backward(self) -> bool:
        """Whether a backward may have nothing to go back through, which leaves units whole."""
        return may_lack_backward(self.drawn)

    def holds(self, kind: type[Op]) -> bool:
        """Whether there is an operation of a kind."""
        return any(isinstance(op, kind) for op in self.operations())


OperationStrategy = Callable[[Program], None]


@cache
def operation_strategies() -> dict[str, OperationStrategy]:
    """How each operation is drawn. :class:`ContractError` for one without a file."""
    return {kind: _strategy_of(kind) for kind in OPERATIONS}


def _strategy_of(kind: str) -> OperationStrategy:
    try:
        found: OperationStrategy = import_module(f"fsdpfuzz.strategies.operations.{kind}").draw
    except (ModuleNotFoundError, AttributeError):
        raise ContractError(f"strategies/operations/{kind}.py has no draw()") from None
    return found
