"""Small changes that put a case on some ground or take it off."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fsdpfuzz.spec import (
    CaseSpec,
    Fsdp1Plan,
    Fsdp2Plan,
    Plan,
    case_places,
    innermost,
    mixed_units,
    owners_among,
    split_ties,
    units_among,
    within,
)
from fsdpfuzz.strategies._choose import Draw, pick
from fsdpfuzz.strategies._plans import first_children


def with_plan(case: CaseSpec, plan: Plan) -> CaseSpec:
    """The case under another plan."""
    return msgspec.structs.replace(case, plan=plan)


def by_hand(case: CaseSpec) -> Plan:
    """The case's plan with every unit listed, also those that classes had named."""
    plan = case.plan
    if not (isinstance(plan, Fsdp1Plan) and plan.wrap == "module_classes"):
        return plan
    paths = units_among(case_places(case), plan)
    return Fsdp1Plan(
        units=tuple(msgspec.structs.replace(plan.units[0], path=path) for path in paths)
    )


def with_unit(case: CaseSpec, path: str) -> CaseSpec:
    """The case with one more unit, whose options are those of the first."""
    plan = by_hand(case)
    order = [place.path for place in case_places(case)]
    if isinstance(plan, Fsdp2Plan):
        two = (*plan.units, msgspec.structs.replace(plan.units[0], path=path))
        return with_plan(
            case, Fsdp2Plan(units=tuple(sorted(two, key=lambda u: order.index(u.path))))
        )
    one = (*plan.units, msgspec.structs.replace(plan.units[0], path=path))
    units = tuple(sorted(one, key=lambda u: order.index(u.path)))
    return with_plan(case, msgspec.structs.replace(plan, units=units))


def without_unit(case: CaseSpec, path: str) -> CaseSpec:
    """The case without one unit; the root becomes one where parameters would lie bare.

    A unit whose first child is called on its own goes together with that child.
    """
    left = frozenset(unit.path for unit in case.plan.units) - {path}
    if innermost(path, left) is None:
        case = with_unit(case, "")
    plan = case.plan
    if isinstance(plan, Fsdp2Plan):
        case = with_plan(case, Fsdp2Plan(units=tuple(u for u in plan.units if u.path != path)))
    else:
        units = tuple(unit for unit in plan.units if unit.path != path)
        case = with_plan(case, msgspec.structs.replace(plan, units=units))
    body = path.removesuffix(".0")
    if body in left and path in first_children(case_places(case), {body}):
        return without_unit(case, body)
    return case


def split_a_tie(draw: Draw, case: CaseSpec) -> CaseSpec:
    """Makes the module of one end of a tie a unit, unless some tie is split already."""
    if not case.ties or split_ties(case):
        return case
    holder = {p.fqn: place.path for place in case_places(case) for p in place.parameters}
    pairs = [(holder[tie.source], holder[tie.target]) for tie in case.ties]
    tops = [a if not b or within(a, b) else b for a, b in pairs if a != b]
    return with_unit(case, pick(draw, tops)) if tops else case


def join_ties(case: CaseSpec) -> CaseSpec:
    """Takes away the units that lie between the two ends of a tie, or the tie itself."""
    if not case.ties:
        return case
    if isinstance(case.plan, Fsdp1Plan) and case.plan.wrap == "module_classes":
        owners = owners_among(case_places(case), case.plan)
        kept = tuple(tie for tie in case.ties if owners[tie.source] == owners[tie.target])
        return msgspec.structs.replace(case, ties=kept)
    while pairs := split_ties(case):
        first, second = pairs[0]
        path = second if within(second, first) else first
        case = without_unit(case, path)
    return case


def with_orig_params(case: CaseSpec, value: bool, *, units: int | None = None) -> CaseSpec:
    """The case (fsdp1) with ``use_orig_params`` set in all units, or in the first few."""
    plan = case.plan
    if not isinstance(plan, Fsdp1Plan):
        return case
    changed = tuple(
        msgspec.structs.replace(unit, use_orig_params=value) if units is None or i < units else unit
        for i, unit in enumerate(plan.units)
    )
    return with_plan(case, msgspec.structs.replace(plan, units=changed))


def mix_a_unit(draw: Draw, case: CaseSpec) -> CaseSpec:
    """Freezes one parameter of a unit that manages several, unless a unit is mixed already."""
    if mixed_units(case):
        return case
    targets = {tie.target for tie in case.ties}
    held: dict[str, list[str]] = {}
    for fqn, owner in owners_among(case_places(case), case.plan).items():
        if owner is not None and fqn not in targets:
            held.setdefault(owner, []).append(fqn)
    several = [names for names in held.values() if len(names) > 1]
    if not several:
        return case
    names = pick(draw, several)
    frozen = [name for name in case.frozen if name not in names]
    return msgspec.structs.replace(case, frozen=in_order(case, [*frozen, names[0]]))


def in_order(case: CaseSpec, names: Iterable[str]) -> tuple[str, ...]:
    """Parameter names in the order of the model."""
    wanted = set(names)
    every = (p.fqn for place in case_places(case) for p in place.parameters)
    return tuple(name for name in every if name in wanted)


def mix_orig_params(_: Draw, case: CaseSpec) -> CaseSpec:
    """Flips ``use_orig_params`` (fsdp1) of the first unit, where there are several."""
    plan = by_hand(case)
    if not isinstance(plan, Fsdp1Plan) or len(plan.units) < 2:
        return case
    plan = msgspec.structs.replace(plan, wrap="nested")
    flipped = not plan.units[0].use_orig_params
    return with_orig_params(with_plan(case, plan), flipped, units=1)


def wrap_root(case: CaseSpec) -> CaseSpec:
    """The case with the root as a unit."""
    return case if any(not unit.path for unit in case.plan.units) else with_unit(case, "")
