"""Lists of units that a unit of fsdp2 gathers early."""

from __future__ import annotations

from collections.abc import Sequence

from fsdpfuzz.case import within
from fsdpfuzz.strategies.drawing import Drawing, one_unit

MOST = 2


def lists(d: Drawing, option: str, *, reverse: bool) -> None:
    """For some units the next one or two that the pass comes to, or those behind the next one;
    now and then any.

    Shrinks towards none.
    """
    if d.a.fsdp1 or d.parting != "never":
        return
    paths = [unit.path for unit in d.case.plan.units]
    # Drawn first: a unit less must not cost Hypothesis a choice more or less.
    # Of backward it is known in fewer programs in what order it comes to the units.
    if not d.chance(38 if reverse else 26) or len(paths) < 2:
        return
    # Forward gathers the next ones next anyhow: what it is told changes the order of those behind.
    number, anyhow, skip = d.between(1, MOST), d.chance(8), d.chance(25 if reverse else 60)
    order = _as_they_end(d.a.units)[::-1] if reverse else list(d.a.units)
    # Who manages no parameter has nothing to gather, and who uses none is not called.
    holding = [path for path in order if any(p.used for p in d.a.managed.get(path, ()))]
    order = order if anyhow or len(holding) < 2 else holding
    one = d.pick(order)
    for i, (path, flag) in enumerate(zip(paths, d.mask(len(paths)), strict=True)):
        if path not in order or not (flag or path == one):
            continue
        others = [p for p in order if d.a.common_root(p, path)]
        at = others.index(path) + skip
        named = others[at + 1 : at + 1 + number]
        if anyhow:
            flags = d.mask(len(others))
            named = [p for p, flag in zip(others, flags, strict=True) if flag and p != path]
        one_unit(d, option, tuple(named), unit=i)


def _as_they_end(units: Sequence[str]) -> list[str]:
    """Units as their forwards end, an outer one after those in it; backward goes the other way."""
    ended: list[str] = []
    open_: list[str] = []
    for path in units:
        while open_ and not within(path, open_[-1]):
            ended.append(open_.pop())
        open_.append(path)
    return [*ended, *reversed(open_)]
