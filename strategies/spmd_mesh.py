"""A mesh by whose names ``fully_shard`` is told what is sharded."""

from __future__ import annotations

import msgspec

from fsdpfuzz.case import Fsdp2Plan, Plan
from fsdpfuzz.case.mesh import with_plans
from fsdpfuzz.case.named_axes import SpmdMesh, ranks_of_shards
from fsdpfuzz.case.parallel import Parallel
from fsdpfuzz.case.tensor_parallel import TensorParallel
from fsdpfuzz.case.units.reshard_after_forward import over_some, with_reshard
from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """Where all that computes does so on DTensors: with one axis of shards, or with two.

    Seldom with units that are resharded over a number of ranks, which it refuses. Shrinks towards
    none, then towards one axis.
    """
    wanted, two, several, refused = d.chance(20), d.chance(50), d.chance(70), d.chance(5)
    if not wanted or d.a.fsdp1:
        return
    ranks = ranks_of_shards(d.case)
    # Over two axes of several ranks each, where there are enough.
    inner = next((n for n in range(2, ranks) if several and ranks % n == 0), 1)
    case = d.case if refused else with_plans(d.case, _resharded)
    named = SpmdMesh(inner=inner if two else None)
    cut = None if case.tensor_parallel is None else _one_by_one(case.tensor_parallel)
    changed = msgspec.structs.replace(case, spmd_mesh=named, tensor_parallel=cut)
    if d.accepts(changed):
        d.case = changed


def _one_by_one(told: TensorParallel) -> TensorParallel | None:
    """The same modules, with data that is whole between them; None where only norms are left."""
    modules = tuple(
        Parallel(module=path, style=style)
        for part in told.modules
        for path, style in part.styles()
        if style != "sequence"
    )
    return TensorParallel(size=told.size, modules=modules) if modules else None


def _resharded(plan: Plan) -> Plan:
    return with_reshard(plan, over_some, True) if isinstance(plan, Fsdp2Plan) else plan
