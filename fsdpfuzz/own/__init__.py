"""A check of somebody's own model: whose code may run, what is asked of it, what is said of it.

Drawing and judging is the loop's. Importing this package imports neither torch nor Hypothesis.
"""

from __future__ import annotations

from fsdpfuzz.own._begins import begins
from fsdpfuzz.own._depths import DEPTHS, OWN_PROPERTIES, Depth, Task, task_of
from fsdpfuzz.own._target import is_permitted, permit, target_named, unchanged, wraps_itself

__all__ = [
    "DEPTHS",
    "OWN_PROPERTIES",
    "Depth",
    "Task",
    "begins",
    "is_permitted",
    "permit",
    "target_named",
    "task_of",
    "unchanged",
    "wraps_itself",
]
