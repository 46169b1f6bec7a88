"""Which modules may be called by themselves, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdpfuzz.case.hazards.unit_calls import calls_of_units
from fsdpfuzz.case.paths import outermost, within
from fsdpfuzz.case.units.precision import left_to_the_root

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


def stands_alone(a: Anatomy, target: str) -> bool:
    """Whether FSDP supports a forward of this module by itself.

    All units that manage what lies in it are called with it, and it takes the inputs as they
    are: fsdp1 casts those of its root alone, fsdp2 those of every unit that is not told otherwise
    (``cast_forward_inputs`` of both). A root that lies in a replicated unit may count on that one
    to cast.
    """
    if not target or (target in a.roots and target in outermost(a.units)):
        return True
    owners = {o for fqn, o in a.owners.items() if within(fqn, target) and o is not None}
    if not all(within(module, target) for owner in owners for module in a.modules_of(owner)):
        return False
    # fsdp1: ``_root_cast_forward_input``; fsdp2: ``FSDPState._cast_forward_inputs`` in each
    # pre-forward.
    taking = owners if a.fsdp1 else outermost(path for path in a.units if within(path, target))
    return not any(left_to_the_root(a, path) for path in taking)


# ``FSDPState._lazy_init`` raises where a unit below the root has run before it: "requires running
# forward through the root module first".
def calls_by_the_book(a: Anatomy) -> bool:
    """Whether each forward `stands_alone`, and the root, if it is called, is so first.

    Both APIs document that the first forward decides which unit is the root.
    """
    before: list[str] = []
    for i, op in enumerate(a.case.program):
        if op.renews:
            before = []
        elif op.runs_model:
            before.append(op.called)
            if not stands_alone(a.at(i - 1), op.called):
                return False
            if not op.called and before[0]:
                return False
    # Of a model that calls all its modules the whole is called first, and each root with it.
    return not a.optional or not any(_root_comes_late(a, rank) for rank in a.telling_ranks)


def _root_comes_late(a: Anatomy, rank: int) -> bool:
    """Whether a root is first called after a module below it was called by itself."""
    called: set[str] = set()
    alone: set[str] = set()
    for i, op, now in a.situations(rank):
        if op.renews:
            called, alone = set(), set()
        elif op.runs_model:
            b = a.at(i)
            units = {unit for unit, _ in calls_of_units(b, op, now)}
            late = set(b.roots) & units - called
            if any(within(path, root) and path != root for root in late for path in alone):
                return True
            called |= units
            alone |= {op.called} - {""}
    return False
