"""Lists of units that a unit of fsdp2 gathers early."""

from __future__ import annotations

from fsdpfuzz.strategies.drawing import Drawing, one_unit

MOST = 2


def lists(d: Drawing, option: str, *, reverse: bool) -> None:
    """For some units the next one or two in the model's order, or in reverse, or those behind
    the next one; now and then any.

    Shrinks towards none.
    """
    paths = [unit.path for unit in d.case.plan.units]
    if d.a.fsdp1 or d.parting != "never" or len(paths) < 2 or not d.chance(12):
        return
    number, anyhow, skip = d.between(1, MOST), d.chance(20), d.chance(25)
    one = d.between(0, len(paths) - 1)
    for i, (path, wanted) in enumerate(zip(paths, d.mask(len(paths)), strict=True)):
        if not wanted and i != one:
            continue
        others = [p for p in d.a.units if d.a.common_root(p, path)]
        if reverse:
            others.reverse()
        at = others.index(path) + skip
        named = others[at + 1 : at + 1 + number]
        if anyhow:
            flags = d.mask(len(others))
            named = [p for p, flag in zip(others, flags, strict=True) if flag and p != path]
        one_unit(d, option, tuple(named), unit=i)
