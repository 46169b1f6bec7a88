"""Structures of a case on which FSDP is known to be delicate.

Each is a fact about the case alone. Known findings name them, so that they explain no more
than they must, and drawing keeps off them once they are understood.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fsdpfuzz.spec._case import CaseSpec
from fsdpfuzz.spec._flow import calls, situations
from fsdpfuzz.spec._model import Idle, Node, Repeat, Sequential
from fsdpfuzz.spec._plan import Fsdp1Unit
from fsdpfuzz.spec._program import Backward, Flip, Forward, RequiresGrad
from fsdpfuzz.spec._tree import Parameter, Place, case_places
from fsdpfuzz.spec._units import (
    frozen_names,
    owners_among,
    unit_of,
    units_among,
    within,
)


def owned_parameters(case: CaseSpec, found: Sequence[Place]) -> dict[str, list[Parameter]]:
    """For each unit the parameters that it manages, one tied within the unit once."""
    owners = owners_among(found, case.plan)
    targets = {tie.target for tie in case.ties if owners.get(tie.source) == owners.get(tie.target)}
    owned: dict[str, list[Parameter]] = {path: [] for path in units_among(found, case.plan)}
    for place in found:
        for parameter in place.parameters:
            owner = owners.get(parameter.fqn)
            if owner is not None and parameter.fqn not in targets:
                owned[owner].append(parameter)
    return owned


def single_element_units(case: CaseSpec, found: Sequence[Place]) -> tuple[str, ...]:
    """Units that manage one element in all, so that a shard is as large as the whole."""
    return tuple(
        path
        for path, parameters in owned_parameters(case, found).items()
        if sum(parameter.numel for parameter in parameters) == 1
    )


def quiet_units(case: CaseSpec, found: Sequence[Place]) -> tuple[str, ...]:
    """Units that manage parameters, none of which gets a gradient: all frozen or unused.

    Also those that are so for a part of the program only.
    """
    frozen = frozen_names(case).union(
        *(op.parameters for op in case.program if isinstance(op, RequiresGrad) and not op.value)
    )
    return tuple(
        path
        for path, parameters in owned_parameters(case, found).items()
        if parameters and all(p.fqn in frozen or not p.used for p in parameters)
    )


def kept_quiet_units(case: CaseSpec, found: Sequence[Place]) -> tuple[str, ...]:
    """Quiet units that fsdp1 leaves unsharded between forward and backward."""
    return tuple(
        path
        for path in quiet_units(case, found)
        if isinstance(unit := unit_of(case.plan, path), Fsdp1Unit)
        and unit.sharding == "SHARD_GRAD_OP"
    )


def identity_units(case: CaseSpec, found: Sequence[Place]) -> tuple[str, ...]:
    """Units whose module returns its very input."""
    nodes = {place.path: place.node for place in found}
    return tuple(path for path in units_among(found, case.plan) if _returns_its_input(nodes[path]))


def reentrant_scopes(case: CaseSpec, found: Sequence[Place]) -> dict[str, str]:
    """For each reentrant checkpoint, by path, how it lies to units and other checkpoints.

    ``repeated``: what it recomputes is called several times; ``nested``: it lies in, or
    holds, another reentrant checkpoint; ``part``: it recomputes some of what one unit
    manages, not all; ``whole``: none of these.
    """
    paths = [c.path for c in case.checkpoints if c.reentrant]
    owners = owners_among(found, case.plan)
    scopes = {}
    for path in paths:
        if any(_repeats(place, path) for place in found):
            scopes[path] = "repeated"
        elif any(other != path and (within(path, other) or within(other, path)) for other in paths):
            scopes[path] = "nested"
        elif any(_is_cut(path, owner, owners) for owner in set(owners.values())):
            scopes[path] = "part"
        else:
            scopes[path] = "whole"
    return scopes


def changes_after_lone_forward(case: CaseSpec) -> bool:
    """Whether ``requires_grad`` changes while an outermost unit has had no backward.

    What its latest forward left behind, whole parameters or hooks, belongs to the time
    before. No backward reaches a unit whose output does not require grad.
    """
    found = case_places(case)
    units = units_among(found, case.plan)
    roots = [path for path in units if not any(within(path, u) for u in units if u != path)]
    lone: set[str] = set()
    reached: set[str] = set()
    for _, op, now in situations(case, 0):
        if isinstance(op, Forward):
            with_grad = {call.path for call in calls(case, op, now) if call.input_grad}
            trained = {
                place.path
                for place in found
                if any(p.used and now.trained[p.fqn] for p in place.parameters)
            }
            lone.update(roots)
            if op.grad and not op.drop:
                reached.update(
                    root
                    for root in roots
                    if root in with_grad or any(within(path, root) for path in trained)
                )
        elif isinstance(op, Backward):
            lone -= reached
            reached.clear()
        elif lone and isinstance(op, RequiresGrad | Flip):
            return True
    return False


def delicate(case: CaseSpec, found: Sequence[Place]) -> Iterator[tuple[str, str]]:
    """The features that tell of these structures."""
    yield "single_element_unit", _on(single_element_units(case, found))
    yield "quiet_unit", _on(quiet_units(case, found))
    if case.api == "fsdp1":
        yield "kept_quiet_unit", _on(kept_quiet_units(case, found))
    yield "identity_unit", _on(identity_units(case, found))
    scopes = set(reentrant_scopes(case, found).values())
    yield (
        "reentrant",
        next((s for s in ("repeated", "nested", "part", "whole") if s in scopes), "no"),
    )


def _is_cut(path: str, owner: str | None, owners: dict[str, str | None]) -> bool:
    """Whether ``owner`` manages parameters inside ``path`` and others outside of it."""
    if owner is None:
        return False
    inside = {within(fqn, path) for fqn, unit in owners.items() if unit == owner}
    return len(inside) == 2


def _repeats(place: Place, path: str) -> bool:
    if not isinstance(place.node, Repeat) or place.node.times < 2:
        return False
    return within(path, place.path) and path != place.path


def _returns_its_input(node: Node | None) -> bool:
    if isinstance(node, Sequential):
        return all(_returns_its_input(child) for child in node.children)
    if isinstance(node, Repeat):
        return node.no_grad == "off" and _returns_its_input(node.body)
    return isinstance(node, Idle)


def _on(paths: tuple[str, ...]) -> str:
    return "on" if paths else "off"
