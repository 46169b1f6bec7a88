"""What roots of fsdp2 do to each other's order of backward where they share their streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.hazards.call_order import begins_and_ends
from fsdpfuzz.case.hazards.unit_calls import calls_of_units, units_of_a_forward
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.sides import side_of
from fsdpfuzz.case.units.replicas import belongs_to

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation
    from fsdpfuzz.case.operations import Op


# ``FSDPState._init_shared_state`` calls ``FSDPCommContext.lazy_init`` in the first forward of each
# root, which makes a new ``post_forward_order``. Who is the first in one looks for nothing in it.
@lru_cache(maxsize=64)
def order_begun_again(a: Anatomy) -> bool:
    """Whether a root is called first when others have noted two calls in the order they share."""
    return a.case.share_comm_ctx and any(_begun_again(a, rank) for rank in a.telling_ranks)


def _begun_again(a: Anatomy, rank: int) -> bool:
    begun: set[str] = set()
    noted = 0
    for i, op, now in a.situations(rank):
        if op.renews:
            begun.clear()
            noted = 0
        elif op.gives_gradients:
            noted = 0
        b = a.at(i)
        for unit, ends, notes in _noting(b, op, now):
            root = belongs_to(b, unit)
            if not ends and root not in begun:
                if noted > 1:
                    return True
                begun.add(root)
                noted = 0
            if ends and notes and b.owned[unit]:
                noted += 1
        if op.starts_over:
            noted = 0
    return False


def _noting(a: Anatomy, op: Op, now: Situation) -> Iterator[tuple[str, bool, bool]]:
    """The units that an operation calls, as each begins and ends, and whether that notes it."""
    open_, begun = op.cut_short(a)
    called = [(a.unit_at[path], path, path not in open_) for path in begun if path in a.unit_at]
    called += [(unit, call.path, call.grad) for unit, call in calls_of_units(a, op, now)]
    for i, ends in begins_and_ends([path for _, path, _ in called]):
        unit, _, notes = called[i]
        yield unit, ends, notes


# The callback at the end of a backward reshards the units of its own root, and a root that nothing
# requires grad of has none.
@lru_cache(maxsize=64)
def silent_beside_others(a: Anatomy) -> bool:
    """Whether a backward comes to some of the roots that were called, and not to others."""
    return a.case.share_comm_ctx and any(_silent(a, rank) for rank in a.telling_ranks)


def _silent(a: Anatomy, rank: int) -> bool:
    for i, op, now in a.situations(rank):
        b = a.at(i)
        if op.waits:
            units = units_of_a_forward(b, op, now)
            reached = {belongs_to(b, unit) for unit in units.reached}
            if reached and {belongs_to(b, unit) for unit in units.called} - reached:
                return True
    return False


# A reentrant checkpoint goes back through what it recomputes in a backward of its own.
def order_ended_early(a: Anatomy) -> bool:
    """Whether a reentrant checkpoint lies around a root: the callback that ends its backward, in
    the midst of the others', forgets the order of all."""
    return a.case.share_comm_ctx and any(
        within(root, c.path) and (root != c.path or side_of(a, c) == "around")
        for c in a.case.checkpoints
        if c.reentrant
        for root in a.roots
    )


_FOUND: Mapping[str, tuple[Callable[[Anatomy], bool], str]] = {
    "shared_order": (
        order_begun_again,
        "on when a root is called first behind others that share its streams, and the order in "
        "which backward gathers begins again (fsdp2 only)",
    ),
    "shared_recomputed": (
        order_ended_early,
        "on when a reentrant checkpoint lies around a root that shares its streams (fsdp2 only)",
    ),
    "shared_silent": (
        silent_beside_others,
        "on when a backward comes to some roots that share their streams, and not to others "
        "(fsdp2 only)",
    ),
}


class SharedOrderDimension(Hazard):
    """Whether roots that share their streams lose or lengthen the order of their backward."""

    name = "shared_order"
    features: ClassVar[Mapping[str, Feature]] = {
        # Of few cases, which are known to fail: no pair is waited for.
        name: Feature(about=about, group="Wrapping", values=("off",), open=True, apis=("fsdp2",))
        for name, (_, about) in _FOUND.items()
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Each of them."""
        for name, (found, _) in _FOUND.items() if not a.fsdp1 else ():
            yield name, on(found(a))
