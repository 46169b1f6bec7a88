"""Backward. Each operation has a file here, also one that is drawn with others."""

from __future__ import annotations

from fsdpfuzz.case import Op
from fsdpfuzz.case.operations import AverageUnmanaged
from fsdpfuzz.strategies.operations.program import Program


def draw(program: Program) -> None:
    """Every iteration has one already; `forward` adds those of further micro-batches."""


def after_reductions(ops: list[Op]) -> list[int]:
    """Where in an iteration gradients have just been reduced, the last place first.

    By FSDP and, if there is more to reduce, by the user.
    """
    found, synchronised = [], True
    for i, op in enumerate(ops):
        if op.runs_model:
            synchronised = op.reduces
        if op.gives_gradients and synchronised:
            averaged = any(isinstance(then, AverageUnmanaged) for then in ops[i + 1 : i + 2])
            found.append(i + 1 + averaged)
    return found[::-1]
