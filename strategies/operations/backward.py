"""Backward. Each operation has a file here, also one that is drawn with others."""

from __future__ import annotations

from fsdpfuzz.strategies.operations.program import Program


def draw(program: Program) -> None:
    """Every iteration has one already; `forward` adds those of further micro-batches."""
