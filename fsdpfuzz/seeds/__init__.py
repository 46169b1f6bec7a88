"""The source documents, each parametrisation restated as a case."""

from __future__ import annotations

from fsdpfuzz.seeds._base import Seed, fitting, lacking, with_seeds
from fsdpfuzz.seeds._checkpoint import CHECKPOINT
from fsdpfuzz.seeds._exec_order import EXEC_ORDER
from fsdpfuzz.seeds._fine_tune import FINE_TUNE
from fsdpfuzz.seeds._memory import MEMORY
from fsdpfuzz.seeds._state_dict import STATE_DICT

SEEDS: tuple[Seed, ...] = (*CHECKPOINT, *STATE_DICT, *FINE_TUNE, *EXEC_ORDER, *MEMORY)
"""All seeds, in the order of the documents."""

__all__ = [
    "CHECKPOINT",
    "EXEC_ORDER",
    "FINE_TUNE",
    "MEMORY",
    "SEEDS",
    "STATE_DICT",
    "Seed",
    "by_family",
    "fitting",
    "lacking",
    "with_seeds",
]


def by_family(document: str) -> tuple[Seed, ...]:
    """The seeds of one document, by its number: ``000`` to ``004``."""
    return tuple(seed for seed in SEEDS if seed.document == document)
