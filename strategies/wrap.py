"""Which modules become units, and how FSDP is told of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from fsdpfuzz.case import (
    CLASSES,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Place,
    Switch,
    innermost,
    join,
    unit_paths,
    within,
)
from fsdpfuzz.case.policies import sizes
from fsdpfuzz.case.wrap import WrapDimension
from fsdpfuzz.errors import CaseError
from fsdpfuzz.strategies.drawing import Drawing

MAX_UNITS = 6


def draw(d: Drawing) -> None:
    """Any set of modules; fsdp1's by hand, by policy, by classes or by size.

    Most plans cover every parameter, since FSDP does not synchronise what no unit manages; the
    others go with programs that only save and load. Most ties join names within one unit.

    Shrinks towards the root alone, by hand.
    """
    choice = d.a.fsdp1 and d.parting == "never"
    way = d.pick(("nested", "custom_policy", "module_classes")) if choice else "nested"
    d.trains = d.parting != "never" or not d.chance(1, state_dict=25)
    # That shared parameters have to lie in one unit is documented, and known.
    split = d.chance(6) and d.a.imported is None
    _units(d, way, split=split)
    _otherwise(d, choice=choice, split=split)


def _units(d: Drawing, way: str, *, split: bool) -> None:
    places = d.a.places
    if way == "module_classes" and _by_classes(d, places) and (split or not d.a.split_ties):
        return
    paths = _chosen(d, places, may_open_root=way == "nested")
    way = "nested" if way == "module_classes" else way
    _plan(d, _in_order(places, paths), way)
    # Units are taken out one by one until no tie is split: nothing is drawn and thrown away.
    while d.a.split_ties and not split:
        first, second = d.a.split_ties[0]
        paths = _without(places, paths, second if within(second, first) else first)
        _plan(d, _in_order(places, paths), way)


def _without(places: Sequence[Place], paths: set[str], path: str) -> set[str]:
    """Without one unit, whose parameters the root manages at the latest.

    A unit whose first child is called on its own goes together with that child.
    """
    body = path.removesuffix(".0")
    together = body in paths and path in _first_children(places, paths)
    return paths - {path, *((body,) if together else ())} | {""}


def _plan(d: Drawing, paths: Sequence[str], way: str) -> None:
    if d.a.fsdp1:
        if "" not in paths or len(paths) == 1:
            way = "nested"
        units = tuple(Fsdp1Unit(path=path) for path in paths)
        d.put(plan=Fsdp1Plan(units=units, wrap=way))  # type: ignore[arg-type]
    else:
        d.put(plan=Fsdp2Plan(units=tuple(Fsdp2Unit(path=path) for path in paths)))


def _by_classes(d: Drawing, places: Sequence[Place]) -> bool:
    """A plan by classes of modules, where there are any to name."""
    kinds = _classes(places)
    chosen = [kind for kind, wanted in zip(kinds, d.mask(len(kinds)), strict=True) if wanted]
    plan = Fsdp1Plan(units=(Fsdp1Unit(path=""),), wrap="module_classes", classes=tuple(chosen))
    units = set(unit_paths(plan, places)) if chosen else set()
    if not units or not _first_children(places, units) <= units:
        return False
    before = d.case.plan
    d.put(plan=plan)
    if not sound(d):
        d.put(plan=before)
        return False
    return True


def _classes(places: Sequence[Place]) -> list[str]:
    """The kinds of module that a policy may name by class."""
    hidden = {kind for place in places if place.node for kind in place.node.inner_kinds}
    found = dict.fromkeys(place.kind for place in places[1:])
    return [kind for kind in found if kind in CLASSES and kind not in hidden]


# Drawn for both APIs: with fewer choices fsdp2 would be the simpler one.
def _otherwise(d: Drawing, *, choice: bool, split: bool) -> None:
    """The same units by another of fsdp1's ways, or those that go by size."""
    plan = d.case.plan
    other, by_size = d.chance(45), d.chance(14)
    sized = _by_size(d, wanted=by_size and choice, split=split)
    if sized or not choice or not isinstance(plan, Fsdp1Plan):
        return
    inner = tuple(unit.path for unit in plan.units if unit.path)
    if other and plan.wrap == "module_classes":
        d.put(plan=msgspec.structs.replace(plan, wrap="transformer_policy"))
    elif other and plan.wrap == "custom_policy":
        d.put(plan=Fsdp1Plan(units=(Fsdp1Unit(path=""),), wrap="lambda_policy", chosen=inner))
    elif other and len(plan.units) > 1:
        d.put(plan=msgspec.structs.replace(plan, wrap="enable_wrap"))


def _by_size(d: Drawing, *, wanted: bool, split: bool) -> bool:
    """A plan by size that makes some unit below the root, where there is one."""
    places, ties, before = d.a.places, d.case.ties, d.case.plan
    which, spared = d.between(0, 127), (d.chance(40), d.chance(34))
    flags = d.mask(14), d.mask(14)
    if not wanted:
        return False
    kinds = _classes(places)
    excluded, leaves = (
        tuple(kind for i, kind in enumerate(kinds) if asked and mask[i % 14])
        for asked, mask in zip(spared, flags, strict=True)
    )
    fits = []
    found = sizes(places, ties)
    # As many as a module has, and one more.
    for least in sorted({size + more for size in found.values() if size for more in (0, 1)}):
        plan = Fsdp1Plan(
            units=(Fsdp1Unit(path=""),),
            wrap="size_policy",
            min_num_params=least,
            excluded=excluded,
            leaves=leaves,
        )
        if _may_be(d, plan, split=split):
            fits.append(plan)
    d.put(plan=fits[which % len(fits)] if fits else before)
    return bool(fits)


def _may_be(d: Drawing, plan: Fsdp1Plan, *, split: bool) -> bool:
    d.put(plan=plan)
    return goes_by_size(d) and sound(d) and (split or not d.a.split_ties)


def goes_by_size(d: Drawing) -> bool:
    """Whether there is a unit below the root, and one for each first child that needs one."""
    units = set(d.a.units)
    return len(units) > 1 and _first_children(d.a.places, units) <= units


def sound(d: Drawing) -> bool:
    """Whether the plan, as it stands, goes with the model."""
    try:
        WrapDimension().check(d.a)
    except CaseError:
        return False
    return True


def _chosen(d: Drawing, places: Sequence[Place], *, may_open_root: bool) -> set[str]:
    root, inner = places[0], places[1:]
    # Drawn first: an `and` that ends early would shift the choices that follow.
    open_root = d.chance(12) and may_open_root and bool(inner)
    if d.parting != "never":
        return {"", *_paths_of_switches(places), *_behind(d, places)}
    # What is tied to a parameter outside of all units would be sharded there and whole here.
    open_root = open_root and not (root.parameters and d.trains) and (d.trains or not d.case.ties)
    # Units without a parameter are legal, but of little use: few.
    bare = d.chance(12)
    holding = _holding(places)
    chosen: set[str] = set() if open_root else {""}
    possible = [place for place in inner if place.alone and (bare or place.path in holding)]
    # Units that take or return several tensors are few, and FSDP's hooks look into those.
    chosen |= {place.path for place in possible if not place.callable_alone and d.chance(30)}
    candidates = [place.path for place in possible if place.path not in chosen]
    while d.chance(75) and candidates and len(chosen) < MAX_UNITS:
        chosen.add(candidates.pop(d.between(0, len(candidates) - 1)))
    if open_root and d.trains:
        chosen |= _uncovered(places, chosen)
    managed = {place.path for place in places if place.parameters}
    if not any(innermost(path, frozenset(chosen)) is not None for path in managed):
        chosen.add("")
    return chosen | _first_children(places, chosen)


def _paths_of_switches(places: Sequence[Place]) -> set[str]:
    """The children of switches: what is left behind is then resharded, and frozen as a whole."""
    return {
        join(place.path, "branches", str(i))
        for place in places
        if isinstance(place.node, Switch)
        for i in range(len(place.node.children))
    }


def _behind(d: Drawing, places: Sequence[Place]) -> set[str]:
    """Now and then the last layer, behind all paths."""
    last = [place.path for place in places if place.depth == 1 and place.parameters]
    return {last[-1]} if last and d.chance(40) else set()


def _first_children(places: Sequence[Place], units: Collection[str]) -> set[str]:
    """First children of units that are called on their own, so must be units as well."""
    called = (
        join(place.path, inner)
        for place in places
        if place.node is not None and (inner := place.node.called_inside())
    )
    return {path for path in called if path.rpartition(".")[0] in units}


def _holding(places: Sequence[Place]) -> frozenset[str]:
    """Paths of the places with parameters in them, at any depth."""
    owners = [place.path for place in places if place.parameters]
    return frozenset(p.path for p in places if any(within(owner, p.path) for owner in owners))


def _uncovered(places: Sequence[Place], chosen: Collection[str]) -> set[str]:
    """The outermost modules, below the root, of the parameters that lie in no unit."""
    units, tops = frozenset(chosen), set()
    callable_ = {p.path for p in places if p.path and p.alone}
    for place in places:
        if not place.parameters or innermost(place.path, units) is not None:
            continue
        parts = place.path.split(".") if place.path else []
        paths = (".".join(parts[: i + 1]) for i in range(len(parts)))
        tops.add(next((path for path in paths if path in callable_), ""))
    return tops


def _in_order(places: Sequence[Place], paths: Collection[str]) -> list[str]:
    return [place.path for place in places if place.path in paths]
