"""How checkpoints lie to units: inside of one, around it, or at a module that is no unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdpfuzz.case.paths import join
from fsdpfuzz.case.recipe import MODEL, Inside, Value

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.checkpoints import Checkpoint


def side_of(a: Anatomy, checkpoint: Checkpoint) -> str:
    """``inside`` or ``around`` the unit at its module; ``within`` for one that is no unit.

    What a policy finds by class is wrapped when its checkpoint is there already, so the
    checkpoint lies around the unit, unless it is made of hooks on the module itself. What the
    caller of a module has to do, it does around the unit, whatever the case says.
    """
    if checkpoint.kind == "function_offload" and checkpoint.path in a.unit_at:
        return "around"
    if a.unit_at.get(checkpoint.path) in {unit.path for unit in a.plan.units}:
        return checkpoint.side
    if checkpoint.path in a.options:
        # ``_post_order_apply`` in fsdp/wrap.py puts FSDP where the class was found: inside of the
        # wrapper.
        return "inside" if checkpoint.kind == "composable" else "around"
    return "within"


def reentrant_around(a: Anatomy) -> set[str]:
    """FQNs of the units, and modules of one, around which a reentrant checkpoint lies."""
    return {c.path for c in a.case.checkpoints if c.reentrant and side_of(a, c) == "around"}


# ``fully_shard`` gives the module itself another class: its methods are not the wrapper's.
def unit_module(a: Anatomy, path: str) -> Value:
    """The module of a unit, which may lie in a wrapper that was put around it."""
    for checkpoint in a.case.checkpoints:
        if checkpoint.path == path and checkpoint.wraps and side_of(a, checkpoint) == "around":
            return Inside("model", join(path, "_checkpoint_wrapped_module"))
    return Inside("model", path) if path else MODEL
