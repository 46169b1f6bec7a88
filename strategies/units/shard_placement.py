"""``shard_placement_fn``."""

from __future__ import annotations

from fsdpfuzz.case import Unit
from fsdpfuzz.case.units.shard_placement import Placement
from fsdpfuzz.strategies.drawing import Drawing, one_unit


def draw(d: Drawing) -> None:
    """For some parameters of each unit another dimension that divides evenly, as FSDP wants it.

    Counted from the first or from the last, rarely an uneven one: FSDP refuses it. In half of the
    cases the first dimension by name where no other is even. Most where another plan has saved
    what is loaded. Shrinks towards none.
    """
    if d.a.fsdp1 or not d.chance(85 if d.elsewhere else 16):
        return
    anyhow, by_rows = d.chance(3), d.chance(50)
    units: tuple[Unit, ...] = d.case.plan.units
    for i, unit in enumerate(units):
        owned = d.a.owned[unit.path]
        ranks = d.a.shards(unit.path)
        chosen: dict[str, Placement] = {}
        for parameter, wanted in zip(owned, d.mask(len(owned)), strict=True):
            shape = parameter.shape
            even = [n for n, size in enumerate(shape) if n and (anyhow or size % ranks == 0)]
            dims = [*even, *(n - len(shape) for n in even)]
            if not dims and shape and by_rows:
                dims = [0, -len(shape)]
            if wanted and dims:
                # The names of a tied parameter mean one tensor, which has one placement.
                named = d.a.canonical(parameter.fqn)
                chosen[named] = Placement(parameter=named, dim=d.pick(dims))
        one_unit(d, "shard_placement", tuple(chosen.values()), unit=i)
