"""``replicate`` in place of ``fully_shard``."""

from __future__ import annotations

from fsdpfuzz.case import OPTIONS, Unit
from fsdpfuzz.case.units.replicas import NAME
from fsdpfuzz.strategies.drawing import Drawing, one_unit


def draw(d: Drawing) -> None:
    """For some of the units, beside, below or above others that are sharded; now and then for all.

    Not where a unit is several modules. Shrinks towards none.
    """
    wanted, flags = d.chance(9), d.mask(len(d.case.plan.units))
    if d.a.fsdp1 or d.parting != "never" or not wanted:
        return
    before, a = d.case, d.a
    units: tuple[Unit, ...] = before.plan.units
    for i, (unit, flag) in enumerate(zip(units, flags, strict=True)):
        if not (flag or len(flags) == 1) or len(a.modules_of(unit.path)) > 1:
            continue
        for option in OPTIONS:
            if option.of_shards:
                one_unit(d, option.name, option.default(unit), unit=i)
        one_unit(d, NAME, True, unit=i)
    if not d.accepts(d.case):
        d.case = before
