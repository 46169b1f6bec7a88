"""``param_dtype_override_fn`` of ``MixedPrecisionPolicy``."""

from __future__ import annotations

from fsdpfuzz.case import Unit
from fsdpfuzz.case.units.param_dtype_override import NAME, may_be_overridden
from fsdpfuzz.case.units.precision import computed_in
from fsdpfuzz.strategies.drawing import Drawing, one_unit


def draw(d: Drawing) -> None:
    """For some norms of units in low precision. Shrinks towards none."""
    a, wanted = d.a, d.chance(80)
    if a.fsdp1 or not wanted:
        return
    allowed = may_be_overridden(a)
    units: tuple[Unit, ...] = d.case.plan.units
    for i, unit in enumerate(units):
        named = [p.fqn for p in a.owned[unit.path] if p.fqn in allowed]
        if computed_in(unit) is None or not named:
            continue
        flags = d.mask(len(named))
        chosen = [fqn for fqn, flag in zip(named, flags, strict=True) if flag] or named
        one_unit(d, NAME, tuple(chosen), unit=i)
