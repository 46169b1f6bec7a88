"""Several modules that are one unit."""

from __future__ import annotations

from collections.abc import Sequence

from fsdpfuzz.case import Fsdp2Plan, Fsdp2Unit, within
from fsdpfuzz.case.hazards.unit_calls import returns_a_shared_input
from fsdpfuzz.case.units.grouped import called_apart
from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """Two siblings or more with parameters, units or not, mostly those that a tie joins.

    They lie in another unit, and each forward calls all of them. Most where one returns the input
    that others are given, too: there the hooks of both meet. Shrinks towards none.
    """
    if d.a.fsdp1 or d.parting != "never":
        return
    rows = _rows(d)
    shared = [row for row in rows if returns_a_shared_input(d.a, row[-1])]
    if not d.chance(60 if shared else 18) or not rows:
        return
    row = d.pick(shared or rows)
    first, second = d.between(0, len(row) - 2), d.between(1, len(row) - 1)
    wanted = {row[first], row[max(second, first + 1)]}
    wanted |= {path for path, flag in zip(row, d.mask(len(row)), strict=True) if flag}
    _group(d, [path for path in row if path in _with_partners(d, row, wanted)])


def _rows(d: Drawing) -> list[list[str]]:
    """The siblings that can be one unit; those that a tie joins first."""
    a = d.a
    rows: list[list[str]] = []
    for place in a.places:
        if place.node is None or not any(within(place.path, unit) for unit in a.units):
            continue
        # A module may lie beside the list of the others.
        held: dict[str, list[str]] = {}
        for path in _children(place.path, list(a.by_path)):
            holds = any(within(p.fqn, path) for p in a.parameters)
            if holds and a.by_path[path].alone and not called_apart(a, path):
                held.setdefault(path.rpartition(".")[0], []).append(path)
        rows += [row for row in held.values() if len(row) > 1]
    tied = [row for row in rows if any(_joins(row, tie) for tie in a.source.items())]
    return tied or rows


def _children(path: str, paths: Sequence[str]) -> list[str]:
    """The modules that lie in one, in no other within it."""
    inner = [p for p in paths if p != path and within(p, path)]
    return [p for p in inner if not any(within(p, other) for other in inner if other != p)]


def _joins(row: Sequence[str], names: tuple[str, str]) -> bool:
    return all(any(within(name, path) for path in row) for name in names)


def _with_partners(d: Drawing, row: Sequence[str], wanted: set[str]) -> set[str]:
    """With the siblings that hold the other name of a parameter in one of them."""
    for names in d.a.source.items():
        if any(within(name, path) for name in names for path in wanted):
            wanted = wanted | {p for p in row if any(within(name, p) for name in names)}
    return wanted


def _group(d: Drawing, modules: Sequence[str]) -> None:
    """In place of the units at these modules; not where that would part a tie."""
    before, parted = d.case, len(d.a.split_ties)
    kept = [unit.path for unit in d.case.plan.units if unit.path not in modules]
    units = {path: Fsdp2Unit(path=path) for path in kept}
    units[modules[0]] = Fsdp2Unit(path=modules[0], grouped=tuple(modules[1:]))
    ordered = tuple(units[place.path] for place in d.a.places if place.path in units)
    d.put(plan=Fsdp2Plan(units=ordered))
    if len(d.a.split_ties) > parted:
        d.case = before
