"""Backward. Each operation has a file here, also one that is drawn with others."""

from __future__ import annotations

from itertools import pairwise

from fsdpfuzz.case import Backward, Op
from fsdpfuzz.case.operations import AverageUnmanaged
from fsdpfuzz.strategies.operations.program import Program


def draw(program: Program) -> None:
    """Every iteration has one already; `forward` adds those of further micro-batches."""


def after_reductions(ops: list[Op]) -> list[int]:
    """Where in an iteration gradients have just been reduced, the last place first.

    By FSDP and, if there is more to reduce, by the user.
    """
    found, synchronised = [], True
    for i, (op, then) in enumerate(pairwise((*ops, None))):
        synchronised = getattr(op, "sync", synchronised)
        if isinstance(op, Backward) and synchronised:
            found.append(i + 1 + isinstance(then, AverageUnmanaged))
    return found[::-1]
