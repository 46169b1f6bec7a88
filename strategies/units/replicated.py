"""``replicate`` in place of ``fully_shard``."""

from __future__ import annotations

from fsdpfuzz.case import Unit, default_of
from fsdpfuzz.case.units.replicated import NAME, SHARDED_ALONE
from fsdpfuzz.strategies.drawing import Drawing, one_unit


def draw(d: Drawing) -> None:
    """For some of the units, beside, below or above others that are sharded; now and then for all.

    Where a unit is several modules none of them is. Shrinks towards none.
    """
    wanted, flags = d.chance(9), d.mask(len(d.case.plan.units))
    if d.a.fsdp1 or d.parting != "never" or not wanted:
        return
    before = d.case
    units: tuple[Unit, ...] = before.plan.units
    for i, (unit, flag) in enumerate(zip(units, flags, strict=True)):
        if not (flag or len(flags) == 1) or unit.grouped:
            continue
        for name in SHARDED_ALONE:
            one_unit(d, name, default_of(type(unit), name), unit=i)
        one_unit(d, NAME, True, unit=i)
    if not d.accepts(d.case):
        d.case = before
