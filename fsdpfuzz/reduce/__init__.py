"""Smaller cases: plainer neighbours, reduction, ablation."""

from __future__ import annotations

from fsdpfuzz.reduce.ablation import MOST_RANKS, Ablation, ablate
from fsdpfuzz.reduce.cause import alike
from fsdpfuzz.reduce.neighbours import simpler, usable
from fsdpfuzz.reduce.reducer import Examine, Reduced, reduce, size_of

__all__ = [
    "MOST_RANKS",
    "Ablation",
    "Examine",
    "Reduced",
    "ablate",
    "alike",
    "reduce",
    "simpler",
    "size_of",
    "usable",
]
