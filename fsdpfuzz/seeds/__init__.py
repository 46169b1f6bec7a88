"""The source documents, each parametrisation restated as a case."""

from __future__ import annotations

from fsdpfuzz.seeds._base import Seed, fitting, with_seeds
from fsdpfuzz.seeds._memory import MEMORY
from fsdpfuzz.seeds._state_dict import STATE_DICT

SEEDS: tuple[Seed, ...] = (*STATE_DICT, *MEMORY)
"""All seeds, in the order of the documents."""

__all__ = [
    "MEMORY",
    "SEEDS",
    "STATE_DICT",
    "Seed",
    "by_family",
    "fitting",
    "run_seed",
    "with_seeds",
]


def by_family(document: str) -> tuple[Seed, ...]:
    """The seeds of one document, by its number: ``000`` to ``004``."""
    return tuple(seed for seed in SEEDS if seed.document == document)
