"""Which unit manages which parameter of a case, by the rules of both APIs.

A unit manages the parameters of its subtree that no deeper unit manages. This is what FSDP
is *supposed* to do with a plan; what it did is in the observation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from fsdpfuzz.spec._case import CaseSpec
from fsdpfuzz.spec._plan import Fsdp1Plan, Fsdp1Unit, Fsdp2Plan, Fsdp2Unit, Plan
from fsdpfuzz.spec._tree import Place, case_places


def planned_units(case: CaseSpec, plan: Plan | None = None) -> tuple[str, ...]:
    """Paths of the units of ``plan`` (the case's own unless given), parents first.

    The node kinds of ``module_classes`` are resolved to the places of those kinds.
    """
    return units_among(case_places(case), plan or case.plan)


def unit_owner(case: CaseSpec, plan: Plan | None = None) -> dict[str, str | None]:
    """For each parameter FQN the path of the unit that manages it, or None.

    None stands for a parameter outside all units or one that its unit ignores. Both names
    of a tied parameter are listed, each with the unit in which that name stands.
    """
    return owners_among(case_places(case), plan or case.plan)


def frozen_names(case: CaseSpec) -> frozenset[str]:
    """FQNs of the parameters without ``requires_grad`` at the start, tie targets included."""
    frozen = set(case.frozen)
    frozen.update(tie.target for tie in case.ties if tie.source in frozen)
    return frozenset(frozen)


def unit_of(plan: Plan, path: str) -> Fsdp1Unit | Fsdp2Unit:
    """The options that hold for the unit at ``path``.

    Units found by class take all of the root's, units named by a policy take its
    ``use_orig_params`` and ``limit_all_gathers``, which must not differ within one call.
    """
    if isinstance(plan, Fsdp2Plan):
        return next(unit for unit in plan.units if unit.path == path)
    own = next((unit for unit in plan.units if unit.path == path), plan.units[0])
    if plan.wrap != "custom_policy":
        return own
    root = next((unit for unit in plan.units if not unit.path), own)
    return msgspec.structs.replace(
        own, use_orig_params=root.use_orig_params, limit_all_gathers=root.limit_all_gathers
    )


def units_among(found: Sequence[Place], plan: Plan) -> tuple[str, ...]:
    """As `planned_units`, from places already at hand."""
    chosen = {unit.path for unit in plan.units}
    if isinstance(plan, Fsdp1Plan) and plan.wrap == "module_classes":
        passed = plan.units[0].ignored
        chosen.update(
            place.path
            for place in found
            if place.kind in plan.classes and not any(within(place.path, p) for p in passed)
        )
    return tuple(place.path for place in found if place.path in chosen)


def owners_among(found: Sequence[Place], plan: Plan) -> dict[str, str | None]:
    """As `unit_owner`, from places already at hand."""
    units = frozenset(units_among(found, plan))
    policy = isinstance(plan, Fsdp1Plan) and plan.wrap != "nested"
    ignored = {path: unit_of(plan, "" if policy else path).ignored for path in units if plan.units}
    owners: dict[str, str | None] = {}
    for place in found:
        if not place.parameters:
            continue
        owner = innermost(place.path, units)
        if owner is not None and any(within(place.path, path) for path in ignored[owner]):
            owner = None
        owners.update((parameter.fqn, owner) for parameter in place.parameters)
    return owners


def innermost(path: str, units: Iterable[str]) -> str | None:
    """The deepest of ``units`` that contains the place at ``path``, or None."""
    chosen = units if isinstance(units, frozenset) else frozenset(units)
    while path not in chosen:
        if not path:
            return None
        path = path.rpartition(".")[0]
    return path


def within(path: str, outer: str) -> bool:
    """Whether the place at ``path`` is ``outer`` or lies inside it."""
    return not outer or path == outer or path.startswith(f"{outer}.")
