"""A mesh of two dimensions."""

from __future__ import annotations

from math import gcd

import msgspec

from fsdpfuzz.case import Fsdp1Plan, Plan
from fsdpfuzz.case.mesh import Mesh, over_mesh, with_plans
from fsdpfuzz.strategies.drawing import Drawing
from fsdpfuzz.strategies.micro_batches import leaves_for_later

FOUR = 4
"""As many ranks as two axes of several ranks need."""


def draw(d: Drawing) -> None:
    """Any that has as many places as ranks, axes of one rank too; strategies become hybrid.

    None where ranks part: replicas do not compare their order with each other; often where an
    all-reduce can be put off. Some units of fsdp1 stay as they are now and then. Shrinks towards
    none, then towards few replicas.
    """
    size = d.case.world_size
    often = 40 if leaves_for_later(d) else 20 if size < FOUR else 35
    wanted, mixed = d.chance(often), d.chance(12)
    sizes = [n for n in range(size, 0, -1) if size % n == 0]
    # Two axes of several ranks as often as the two meshes that have an axis of one, of which
    # replicas alone are what nobody needs FSDP for.
    shards = d.pick([n for n in sizes for _ in range(1 if n == 1 else 2 if n == size else 3)])
    # Few where each rank has all: fsdp1 has NO_SHARD for that.
    whole = d.chance(60)
    if not wanted or d.apart:
        return
    if shards == 1 and whole and d.a.fsdp1:
        shards = size
    before = d.case
    mesh = Mesh(replicate=size // shards, shard=shards)
    meshed = over_mesh(before, mesh)
    if mixed and len(before.plan.units) > 1:
        # All but the last one that FSDP makes: the first that is listed.
        units = (meshed.plan.units[0], *before.plan.units[1:])
        meshed = msgspec.structs.replace(
            meshed,
            plan=msgspec.structs.replace(meshed.plan, units=units),
        )
    meshed = with_plans(meshed, lambda plan: dividing(plan, shards))
    if d.accepts(meshed):
        d.case = meshed


def dividing(plan: Plan, shards: int) -> Plan:
    """The plan with numbers of ranks (fsdp2) that divide the shards."""
    if isinstance(plan, Fsdp1Plan):
        return plan
    units = []
    for unit in plan.units:
        number = unit.reshard_after_forward
        if number is not None and not isinstance(number, bool):
            unit = msgspec.structs.replace(unit, reshard_after_forward=gcd(number, shards))
        units.append(unit)
    return msgspec.structs.replace(plan, units=tuple(units))
