"""Units that a backward gathers ahead and never comes to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.hazards.call_order import by_their_end
from fsdpfuzz.case.hazards.unit_calls import calls_of_units, gives_grad, units_of_a_forward
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.units.prefetch_list import listed_in_backward

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


@dataclass(frozen=True)
class VainGathers:
    """Units of fsdp2 that a backward may gather ahead without coming to them, and what follows."""

    units: frozenset[str] = frozenset()
    """Those, where a forward follows at once."""
    reached_next: frozenset[str] = frozenset()
    """Those that another backward reaches at once."""


# ``FSDPState._pre_backward`` in fsdp/_fully_shard/_fsdp_state.py gathers ahead what a list names,
# or what was called before in forward: whether a backward comes to it, or is through with it, it
# does not ask.
@lru_cache(maxsize=64)
def vain_gathers(a: Anatomy) -> VainGathers:
    """What the backwards gather in vain."""
    found: set[str] = set()
    reached_next: set[str] = set()
    for rank in a.telling_ranks if not a.fsdp1 else ():
        called: set[str] = set()
        order: list[tuple[str, str]] = []
        ended: list[_Ended] = []
        in_vain: set[str] = set()
        for i, op, now in a.situations(rank):
            b = a.at(i)
            units, calls = units_of_a_forward(b, op, now), list(calls_of_units(b, op, now))
            gives = gives_grad(b, now)
            ended += (
                _Ended(u, c.path, op.waits and c.grad and gives(c))
                for u, c in by_their_end(calls)
                if b.managed.get(u)
            )
            if op.renews:
                ended.clear()
            if op.waits:
                found |= in_vain
                called |= units.called
                order += ((u, c.path) for u, c in calls if u in units.reached)
            elif op.gives_gradients:
                lists, reached = listed_in_backward(b), {unit for unit, _ in order}
                listed = {
                    path
                    for unit in reached
                    for path in lists.get(unit, ())
                    if b.managed.get(path) and not _comes_after(order, unit, path)
                }
                ahead = _gathered_ahead_of_none(ended, lists)
                in_vain = called - reached | ahead | listed if reached else set()
                if op.goes_back_again:
                    reached_next |= reached if in_vain else set()
                    # The order of the forwards is forgotten when a backward ends.
                    in_vain = listed
                called.clear()
                order.clear()
                ended.clear()
            else:
                # It takes its time, by which what was gathered is there.
                in_vain.clear()
    return VainGathers(frozenset(found), frozenset(reached_next))


class _Ended(NamedTuple):
    """A call of a unit that has ended in forward."""

    unit: str
    path: str
    reached: bool
    """Whether a backward comes to it."""


# ``FSDPParamGroup._record_post_forward`` counts calls without grad as well, so that
# ``_backward_prefetch``, which takes the latest call of its unit that is left, takes another one.
def _gathered_ahead_of_none(ended: Sequence[_Ended], lists: Mapping[str, object]) -> set[str]:
    """Units that the backward gathers for a call that comes to no backward, by the order of all."""
    found: set[str] = set()
    left: dict[str, list[int]] = {}
    for i, call in enumerate(ended):
        left.setdefault(call.unit, []).append(i)
    to_come = [call for call in ended if call.reached]
    while to_come:
        call = to_come.pop()
        i = left[call.unit].pop()
        if i and not lists.get(call.unit):
            ahead = ended[i - 1]
            if not within(call.path, ahead.path) and all(c.unit != ahead.unit for c in to_come):
                found.add(ahead.unit)
    return found


def _comes_after(order: Sequence[tuple[str, str]], unit: str, other: str) -> bool:
    """Whether a backward, once it has come to ``unit`` for the last time, comes to ``other``.

    Or is not through with it, as it holds ``unit``. ``order`` has each call by unit and module.
    """
    first, module = next((i, module) for i, (called, module) in enumerate(order) if called == unit)
    return any(
        i < first or within(path, module)
        for i, (called, path) in enumerate(order)
        if called == other
    )


class VainGathersDimension(Hazard):
    """What is gathered for nothing, and what comes next, while it may still be under way."""

    name = "vain_gathers"
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "gathered_in_vain": Feature(
            about="on when a backward may gather the unit ahead without coming to it from then on, "
            "and a forward follows at once (fsdp2 only)",
            group="Wrapping",
            values=ON,
            apis=("fsdp2",),
        ),
        "behind_vain_gather": Feature(
            about="on when a backward reaches the unit at once after another backward, which may "
            "have gathered a unit ahead without coming to it from then on (fsdp2 only)",
            group="Wrapping",
            values=ON,
            apis=("fsdp2",),
        ),
    }

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Of one unit."""
        if not a.fsdp1:
            yield "gathered_in_vain", on(path in vain_gathers(a).units)
            yield "behind_vain_gather", on(path in vain_gathers(a).reached_next)
