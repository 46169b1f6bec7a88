"""Which modules become units, and how FSDP is told of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fsdpfuzz.case import (
    CLASSES,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Place,
    Repeat,
    Switch,
    innermost,
    join,
    unit_paths,
    within,
)
from fsdpfuzz.strategies.drawing import Drawing

MAX_UNITS = 6


def draw(d: Drawing) -> None:
    """Any set of modules; fsdp1's by hand, by policy, or by classes.

    Most plans cover every parameter, since FSDP does not synchronise what no unit manages; the
    others go with programs that only save and load. Most ties join names within one unit.

    Shrinks towards the root alone, by hand.
    """
    places = d.a.places
    choice = d.a.fsdp1 and d.parting == "never"
    way = d.pick(("nested", "custom_policy", "module_classes")) if choice else "nested"
    d.trains = d.parting != "never" or not d.chance(1, state_dict=25)
    # That shared parameters have to lie in one unit is documented, and known.
    split = d.chance(6) and d.a.imported is None
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
    hidden = {kind for place in places if place.node for kind in place.node.inner_kinds}
    found = dict.fromkeys(place.kind for place in places[1:])
    kinds = [kind for kind in found if kind in CLASSES and kind not in hidden]
    chosen = [kind for kind, wanted in zip(kinds, d.mask(len(kinds)), strict=True) if wanted]
    plan = Fsdp1Plan(units=(Fsdp1Unit(path=""),), wrap="module_classes", classes=tuple(chosen))
    units = set(unit_paths(plan, places)) if chosen else set()
    if not units or not _first_children(places, units) <= units:
        return False
    d.put(plan=plan)
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
    bodies = (
        join(place.path, "body")
        for place in places
        if isinstance(place.node, Repeat) and place.node.no_grad == "first_child"
    )
    return {join(body, "0") for body in bodies if body in units}


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
