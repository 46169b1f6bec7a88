"""What fsdp1 promises about the order in which ranks call units.

With the debug level DETAIL it compares, in the first iteration, the unit that each rank is
about to gather, and raises where they differ; later it compares each rank with that rank's
own first iteration and warns. An iteration is what lies between two backwards, and the last one
need not come to its backward. A forward without a backward is compared by itself and is no part
of the iteration; one in eval mode is not compared, but counts in the first iteration.

The check happens as a unit is about to be gathered. So nothing is promised of an order that
merely ends earlier, nor of units without a common root, each of which counts for itself, nor
where the program wraps the model anew. Nor is anything where fsdp1 takes another order for that
of the first iteration: where a forward without a backward comes before it and goes another way,
or where no output requires grad, so that nothing tells it of the backward. Of an imported model
nothing is promised: its order may depend on the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsdpfuzz.case import Anatomy, Forward, Op, Situation, within
from fsdpfuzz.expect.calls import calls_of


@dataclass(frozen=True, slots=True)
class Deviation:
    """A rank leaves the order of its own first iteration, at the forward ``op``."""

    op: int
    units: int
    """How many units come where another came in the first iteration."""


@dataclass(slots=True)
class _Iteration:
    """The units of one iteration, each with the forward that calls it."""

    ops: list[int]
    units: list[str]


def parting(a: Anatomy) -> int | None:
    """The first forward that ranks run on different sides of a switch, or None.

    From there on FSDP's collectives may belong to different units, so that results, by its
    own word, may be wrong.
    """
    if not any(op.parts_ranks for op in a.case.program):
        return None
    ranks = [a.situations(rank) for rank in range(a.case.world_size)]
    step: tuple[tuple[int, Op, Situation], ...]
    # All ranks run the same program, so their situations come in step.
    for step in zip(*ranks, strict=True):
        i, op, first = step[0]
        if isinstance(op, Forward):
            reached = {call.path for call in a.calls(op, first)}
            sides = [{p: n for p, n in now.active.items() if p in reached} for _, _, now in step]
            if any(_sides(side) != _sides(sides[0]) for side in sides):
                return i
    return None


def order_error(a: Anatomy) -> int | None:
    """The forward at which every rank must raise because the first iterations differ."""
    op = parting(a)
    if op is None or not _checks(a) or not _has_common_root(a):
        return None
    if any(earlier.gives_gradients for earlier in a.case.program[:op]):
        return None
    orders = [_order_at(a, op, rank) for rank in range(a.case.world_size)]
    size = _compared(a)
    groups = (orders[first : first + size] for first in range(0, len(orders), size))
    # If only some of the groups differ, the others raise nothing and wait.
    return op if all(_differ(group) for group in groups) else None


def _differ(orders: Sequence[Sequence[str]]) -> bool:
    # Not strict: a rank that calls less has nothing to compare after its last unit.
    return any(len(set(units)) > 1 for units in zip(*orders, strict=False))


def order_warnings(a: Anatomy) -> tuple[Deviation | None, ...] | None:
    """For each rank where fsdp1 must warn it, or None; None for all where nothing is promised."""
    if not _checks(a):
        return (None,) * a.case.world_size
    # What was called before an exception is a part of the iteration for fsdp1.
    if any(op.interrupts for op in a.case.program):
        return None
    if a.imported is not None or a.replans or not _has_common_root(a) or order_error(a) is not None:
        return None
    ranks = range(a.case.world_size)
    if not all(_first_is_told(a, rank) for rank in ranks):
        return None
    return tuple(_deviation(a, rank) for rank in ranks)


# ``_ExecOrderData.init`` takes the rank in the process group of its root, which with a 2-D mesh is
# the one that the root is sharded over. Such groups are neighbours in rank.
def rank_in_warnings(a: Anatomy, rank: int) -> int:
    """The number by which fsdp1 calls a rank where it warns of another order."""
    return rank % _compared(a)


def _compared(a: Anatomy) -> int:
    """How many ranks a root compares with each other: those that it is sharded over."""
    return min((a.shards(root) for root in a.roots), default=a.case.world_size)


def _order_at(a: Anatomy, op: int, rank: int) -> list[str]:
    """The units that a rank calls at a forward; none of them counts in eval mode."""
    for i, request, now in a.situations(rank):
        if i == op and isinstance(request, Forward) and now.training:
            return _units_called(a, request, now)
    return []


def _first_is_told(a: Anatomy, rank: int) -> bool:
    """Whether fsdp1 hears of each backward, and records in the first iteration what is its own."""
    own: list[str] = []
    recorded: list[str] = []
    first, waiting, reached = True, False, False
    for _, op, now in a.situations(rank):
        if isinstance(op, Forward):
            units = _units_called(a, op, now)
            recorded += units
            if op.waits:
                own += units
                made = calls_of(a, op, now)
                waiting = True
                reached |= made is None or any(c.reached for c in made.units.values())
        elif op.gives_gradients:
            if waiting and not reached:
                return False
            if first and list(dict.fromkeys(recorded)) != list(dict.fromkeys(own)):
                return False
            first = waiting = reached = False
    return True


def _deviation(a: Anatomy, rank: int) -> Deviation | None:
    first: list[str] | None = None
    iteration = _Iteration([], [])
    for i, op, now in a.situations(rank):
        if isinstance(op, Forward) and (now.training if first is not None else op.waits):
            units = _units_called(a, op, now)
            if op.waits:
                iteration.ops += [i] * len(units)
                iteration.units += units
            elif odd := _odd_places(first or (), units):
                return Deviation(i, len(odd))
        elif op.gives_gradients:
            if first is None:
                first = iteration.units
            elif found := _found(first, iteration):
                return found
            iteration = _Iteration([], [])
    return None if first is None else _found(first, iteration)


def _found(first: Sequence[str], later: _Iteration) -> Deviation | None:
    odd = _odd_places(first, later.units)
    return Deviation(later.ops[odd[0]], len(odd)) if odd else None


def _odd_places(first: Sequence[str], later: Sequence[str]) -> list[int]:
    return [i for i, unit in enumerate(later) if i >= len(first) or unit != first[i]]


def _sides(active: dict[str, int]) -> dict[str, int]:
    """Without the switches that are back on their first child."""
    return {path: child for path, child in active.items() if child}


def _checks(a: Anatomy) -> bool:
    return a.fsdp1 and a.case.debug_level == "DETAIL"


def _managing(a: Anatomy) -> frozenset[str]:
    return frozenset(owner for owner in a.owners.values() if owner is not None)


def _has_common_root(a: Anatomy) -> bool:
    """Whether one unit contains all that manage parameters, and is what the program calls."""
    one = any(all(within(unit, root) for unit in _managing(a)) for root in a.units)
    targets = {op.target for op in a.case.program if isinstance(op, Forward)}
    return one and targets <= {""}


def _units_called(a: Anatomy, op: Forward, now: Situation) -> list[str]:
    managing = _managing(a)
    return [call.path for call in a.calls(op, now) if call.path in managing]
