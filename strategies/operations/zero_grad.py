"""Clearing of gradients."""

from __future__ import annotations

from fsdpfuzz.case import ZeroGrad
from fsdpfuzz.strategies.operations.program import MAX_ITERATIONS, Program

TO_NONE = ZeroGrad()
"""PyTorch's default."""


def draw(program: Program) -> None:
    """Between all iterations, in either way; in few programs never.

    What accumulates over a switch of paths would stay in one that nobody takes any more, so there
    gradients are always cleared. Shrinks towards ``set_to_none=True`` everywhere.
    """
    d = program.d
    if d.chance(4) and d.parting == "never":
        return
    gaps = program.between if d.parting == "never" else program.gaps[1:]
    kept = d.for_each(len(gaps), MAX_ITERATIONS, lambda: d.chance(20) and not d.apart)
    for gap, zeros in zip(gaps, kept, strict=True):
        gap.insert(0, ZeroGrad(set_to_none=not zeros))
