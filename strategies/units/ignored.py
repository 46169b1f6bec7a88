"""Ignored modules."""

from __future__ import annotations

from fsdpfuzz.case import Fsdp1Plan, within
from fsdpfuzz.case.units.ignored import shared_with_others
from fsdpfuzz.case.wrap import WrapDimension
from fsdpfuzz.errors import CaseError
from fsdpfuzz.strategies.drawing import Drawing, one_unit


def draw(d: Drawing) -> None:
    """One module that holds no unit, where nothing is trained: FSDP does not synchronise it.

    Shrinks towards none.
    """
    if d.trains or d.case.ties or not d.chance(50):
        return
    plan = d.case.plan
    listed = [unit.path for unit in plan.units]
    by_policy = isinstance(plan, Fsdp1Plan) and plan.wrap != "nested"
    i = listed.index("") if by_policy else d.between(0, len(listed) - 1)
    inner = [
        place.path
        for place in d.a.places
        if place.path != listed[i]
        and within(place.path, listed[i])
        and not any(within(module, place.path) for module in d.a.unit_at)
        and shared_with_others(d.a, place.path) is None
    ]
    before = d.case
    if inner:
        one_unit(d, "ignored", (d.pick(inner),), unit=i)
    if not any(owner is not None for owner in d.a.owners.values()) or not _fits(d):
        d.case = before


def _fits(d: Drawing) -> bool:
    """Whether the unit's other options go together with it."""
    try:
        WrapDimension().check(d.a)
    except CaseError:
        return False
    return True
