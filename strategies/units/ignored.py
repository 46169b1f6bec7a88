"""Ignored modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fsdpfuzz.case import Unit, within
from fsdpfuzz.case.policies import LISTING
from fsdpfuzz.case.units.ignored import shared_with_others
from fsdpfuzz.strategies.drawing import Drawing, one_unit
from fsdpfuzz.strategies.wrap import goes_by_size, sound

IN_TRAINING = 12
"""Of 100 draws; each is one less of the plain wrappings that most people have."""
IN_TRAINING_OF_FOUND = 30
"""The same where a policy finds the units, and has to find none in what is ignored."""


def draw(d: Drawing) -> None:
    """One module that holds no unit, most often one with parameters.

    A policy that finds the units by itself finds none in what is ignored. More often where nothing
    is trained. Shrinks towards none.
    """
    a = d.a
    finds = a.policy is not None and a.policy.wrap not in LISTING
    often = 50 if not d.trains else IN_TRAINING_OF_FOUND if finds else IN_TRAINING
    if d.parting != "never" or not d.chance(often):
        return
    bare = d.chance(12)
    held = dict.fromkeys(a.units, a.parameters) if finds else a.owned
    possible = {
        path: [
            place.path
            for place in a.places
            if place.path != path
            and within(place.path, path)
            and (finds or not any(within(module, place.path) for module in a.unit_at))
            and (bare or any(within(p.fqn, place.path) for p in held[path]))
            and shared_with_others(a, place.path) is None
        ]
        for path in a.units
    }
    before = d.case
    left_alone(d, "ignored", possible)
    # By size hardly anything may be large enough without it.
    by_size = a.policy is not None and a.policy.wrap == "size_policy"
    if by_size and not goes_by_size(d):
        d.case = before


def left_alone(
    d: Drawing, option: str, possible: Mapping[str, Sequence[str]], *, most: int = 1
) -> None:
    """Has a unit ignore up to ``most`` of what it may, by unit; a policy tells it by the root.

    None where the unit's other options do not go together with it, or nothing would be managed.
    """
    plan = d.case.plan
    listed: tuple[Unit, ...] = plan.units
    units = [
        i
        for i, unit in enumerate(listed)
        if possible.get(unit.path) and (d.a.policy is None or not unit.path)
    ]
    if not units:
        return
    before, i = d.case, d.pick(units)
    left = list(possible[listed[i].path])
    chosen = [left.pop(d.between(0, len(left) - 1))]
    while left and len(chosen) < most and d.chance(30):
        chosen.append(left.pop(d.between(0, len(left) - 1)))
    one_unit(d, option, tuple(chosen), unit=i)
    if not any(owner is not None for owner in d.a.owners.values()) or not sound(d):
        d.case = before
