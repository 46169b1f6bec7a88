"""Hypothesis strategies for cases.

`cases` is what the properties draw; the others are its parts and stand alone for a
property that needs one of them. Every drawn case passes ``fsdpfuzz.spec.check``, no
strategy filters, and each says in its docstring what it shrinks towards.
"""

from __future__ import annotations

if __name__ != "fsdpfuzz.strategies":
    raise ImportError(
        f"this folder is the package fsdpfuzz.strategies, but it was imported as {__name__!r}; "
        "write 'from fsdpfuzz import strategies' or 'import fsdpfuzz.strategies'",
        name=__name__,
    )

from fsdpfuzz.strategies._activations import checkpoint_cases
from fsdpfuzz.strategies._cases import cases
from fsdpfuzz.strategies._checkpoints import checkpoint_placements
from fsdpfuzz.strategies._exec_order import exec_order_cases
from fsdpfuzz.strategies._fine_tuning import fine_tune_cases
from fsdpfuzz.strategies._freeze import freeze_masks, ties
from fsdpfuzz.strategies._ground import GROUND, MISUSE, known_ground
from fsdpfuzz.strategies._memory import memory_cases
from fsdpfuzz.strategies._plans import fsdp1_plans, fsdp2_plans
from fsdpfuzz.strategies._programs import inputs, optimizers, programs
from fsdpfuzz.strategies._state_dicts import state_dict_cases
from fsdpfuzz.strategies._trees import TREE_FEATURES, module_trees

__all__ = [
    "GROUND",
    "MISUSE",
    "TREE_FEATURES",
    "cases",
    "checkpoint_cases",
    "checkpoint_placements",
    "exec_order_cases",
    "fine_tune_cases",
    "freeze_masks",
    "fsdp1_plans",
    "fsdp2_plans",
    "inputs",
    "known_ground",
    "memory_cases",
    "module_trees",
    "optimizers",
    "programs",
    "state_dict_cases",
    "ties",
]
