"""Units of which a backward gathers the inner one first on ranks that gave an expert no rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.hazards.call_order import by_their_end
from fsdpfuzz.case.hazards.freed import freed_before_backward
from fsdpfuzz.case.hazards.no_gradient import kept_whole
from fsdpfuzz.case.hazards.passing_on import passing_no_rows, passing_on
from fsdpfuzz.case.hazards.unit_calls import calls_of_units, gives_grad
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.units.prefetch_list import listed_in_backward
from fsdpfuzz.case.units.replicas import belongs_to
from fsdpfuzz.case.units.sharding import is_whole
from fsdpfuzz.case.wrap import Fsdp1Unit

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.modules.walk import Called


# Both APIs gather a unit by a hook on what it puts out. Where that is the very tensor that a unit
# in it puts out, the inner one's hook was registered first, and runs first; else the outer one's
# does. ``dropout`` in aten/src/ATen/native/Dropout.cpp returns an empty input as it is.
@lru_cache(maxsize=64)
def gathered_in_two_orders(a: Anatomy) -> frozenset[str]:
    """Units that a backward gathers in another order where an expert has no rows, and what follows.

    That is, beside the two, those that were called before them: their gradients come of these.
    """
    found: set[str] = set()
    for rank in a.telling_ranks if _experts(a) else ():
        for i, op, now in a.situations(rank):
            b = a.at(i)
            if not (op.waits and now.training):
                continue
            # Under the plan of that forward: a program may wrap its model anew.
            pairs, gives = _pairs(b), gives_grad(b, now)
            calls = [(u, c) for u, c in calls_of_units(b, op, now) if b.managed.get(u) and c.grad]
            ended = [(u, c) for u, c in by_their_end(calls) if gives(c)]
            for k, (_, call) in enumerate(ended):
                if call.path in pairs and not _gathered_ahead(b, ended, k, pairs[call.path]):
                    begun = max(j for j, (_, c) in enumerate(calls) if c is call)
                    found |= {
                        u
                        for j, (u, c) in enumerate(calls)
                        if j <= begun or within(c.path, call.path)
                    }
    return frozenset(found)


@lru_cache(maxsize=64)
def _pairs(a: Anatomy) -> Mapping[str, set[str]]:
    """Modules of units in experts that, without rows alone, put out what a unit in them does.

    Each with these units.
    """
    experts = _experts(a)
    inside = {
        path: unit
        for path, unit in a.unit_at.items()
        if any(within(path, e) and path != e for e in experts)
        if a.managed.get(unit) and _gathered_by_backward(a, unit)
    }
    found: dict[str, set[str]] = {}
    for inner, unit in inside.items():
        for outer in passing_no_rows(a, inner) - passing_on(a, inner):
            if outer in inside:
                found.setdefault(outer, set()).add(unit)
    return found


def _experts(a: Anatomy) -> list[str]:
    """FQNs of the mixtures of which an expert may have no rows."""
    places = {p.path: p.node for p in a.places if p.node is not None and p.node.hands_out_rows}
    inputs, found = a.case.inputs, []
    for path, node in places.items():
        # An expert hands out some of its rows.
        nested = any(within(path, e) and path != e for e in places)
        if node.may_lack_rows(0 if nested else inputs.batch * (inputs.length or 1)):
            found.append(path)
    return found


def _gathered_by_backward(a: Anatomy, unit: str) -> bool:
    if not a.fsdp1:
        return freed_before_backward(a, unit)
    return not (is_whole(a, unit) or unit in kept_whole(a) or unit in a.roots)


# Each rank then gathers the outer unit first, and the inner one next, whose hook runs when.
def _gathered_ahead(
    a: Anatomy, ended: list[tuple[str, Called]], k: int, inner: Collection[str]
) -> bool:
    """Whether the unit of a call is gathered ahead, or one in it, for what was called next."""
    unit = ended[k][0]
    if k + 1 == len(ended):
        return False
    following = ended[k + 1][0]
    if belongs_to(a, following) != belongs_to(a, unit):
        return False
    options = a.options[following]
    if isinstance(options, Fsdp1Unit):
        return options.backward_prefetch == "BACKWARD_PRE"
    lists = listed_in_backward(a)
    if following in lists:
        return not {unit, *inner}.isdisjoint(lists[following])
    return not lists.get(unit)


class EmptyExpertsDimension(Hazard):
    """Whether ranks may gather a unit in different orders, as an expert in it has no rows."""

    name = "empty_experts"
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "two_orders": Feature(
            about="on when the unit lies in an expert and hands on, where that has no rows, what a "
            "unit in it puts out, so that a backward gathers the two in another order; or is the "
            "inner one, or called before them",
            group="Wrapping",
            values=("off",),
            open=True,
        ),
    }

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Of one unit."""
        yield "two_orders", on(path in gathered_in_two_orders(a))
