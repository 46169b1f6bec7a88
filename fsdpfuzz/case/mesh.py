"""Two dimensions of ranks: units are sharded over one and replicated over the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from fsdpfuzz.case.base import Part, Ranks, ranks_in_words
from fsdpfuzz.case.dimension import Dimension, Feature, Simpler
from fsdpfuzz.case.tensor_parallel import data_ranks
from fsdpfuzz.case.units.sharding import HYBRID, Sharding
from fsdpfuzz.case.wrap import Fsdp1Unit
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.modules import Imported
    from fsdpfuzz.case.spec import CaseSpec
    from fsdpfuzz.case.units.configured import Configuration
    from fsdpfuzz.case.wrap import Plan


_PLAIN: Mapping[Sharding, Sharding] = {
    "HYBRID_SHARD": "FULL_SHARD",
    "_HYBRID_SHARD_ZERO2": "SHARD_GRAD_OP",
}
"""What fsdp1 calls the same without replicas."""
_OVER_TWO_AXES: Mapping[str, tuple[str, ...]] = {
    "sharding": ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"),
    "state_dict": ("local",),
}


class Mesh(Part, frozen=True, kw_only=True):
    """``init_device_mesh`` with the dimensions ``replicate`` and ``shard``.

    fsdp2 shards all units over it, fsdp1 those with a hybrid strategy.
    """

    replicate: Ranks
    shard: Ranks

    def words(self) -> str:
        """``2 replicas on 2 ranks each``."""
        several = "replica" if self.replicate == 1 else "replicas"
        return f"{self.replicate} {several} on {ranks_in_words(self.shard)} each"


def own_mesh(own: Imported) -> Mesh | None:
    """The mesh over which the code of somebody's own model shards it, if it has two axes."""
    return None if own.mesh is None else Mesh(replicate=own.mesh[0], shard=own.mesh[1])


def mesh_configured(plan: Plan, config: Configuration, world_size: int) -> Mesh | None:
    """The mesh of a configuration's hybrid strategy: replicas over machines, shards in each."""
    if not any(isinstance(unit, Fsdp1Unit) and unit.takes_mesh for unit in plan.units):
        return None
    name = "num_machines"
    text = config.top.get(name) or "1"
    if not text.isdecimal() or not int(text) or world_size % int(text):
        raise config.wrong(name, f"a number that divides {world_size} ranks")
    return Mesh(replicate=int(text), shard=world_size // int(text))


def with_plans(case: CaseSpec, change: Callable[[Plan], Plan]) -> CaseSpec:
    """The case with all of its plans changed: its own, its variants', those it goes on under."""
    replace = msgspec.structs.replace
    return replace(
        case,
        plan=change(case.plan),
        program=tuple(op.with_plan(change) for op in case.program),
        twins=tuple(
            variant if variant.plan is None else replace(variant, plan=change(variant.plan))
            for variant in case.twins
        ),
    )


def with_strategies(plan: Plan, instead: Mapping[Sharding, Sharding]) -> Plan:
    """The plan (fsdp1) with other sharding strategies; that of fsdp2 as it is."""
    units: tuple[Any, ...] = tuple(
        msgspec.structs.replace(unit, sharding=instead.get(unit.sharding, unit.sharding))
        if isinstance(unit, Fsdp1Unit)
        else unit
        for unit in plan.units
    )
    return msgspec.structs.replace(plan, units=units)


def over_mesh(case: CaseSpec, mesh: Mesh) -> CaseSpec:
    """The case over a mesh; fsdp1's strategies become the hybrid ones that reshard alike."""
    hybrid = {plain: name for name, plain in _PLAIN.items()}
    case = with_plans(case, lambda plan: with_strategies(plan, hybrid))
    return msgspec.structs.replace(case, mesh=mesh)


class MeshDimension(Dimension):
    """None, or how many replicas there are, and over how many ranks each of them is sharded."""

    name = "mesh"
    features: ClassVar[Mapping[str, Feature]] = {
        "mesh": Feature(
            about="no, both (axes of several ranks), one replica, one shard (also where tensor "
            "parallelism takes all ranks): a mesh of two axes; one rank: a case with no other, and "
            "mixed where only some of its units are handed a mesh",
            group="Sharding",
            # What a case of one rank has is not listed: no pair with it is waited for.
            values=("no", "both", "one replica", "one shard"),
            open=True,
            excludes={
                "no": {"sharding": HYBRID, "deferred": ("all_reduce",)},
                "one shard": _OVER_TWO_AXES,
                **dict.fromkeys(("both", "one replica"), _OVER_TWO_AXES),
            },
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Which axis has one rank only; the replicas' where both have."""
        mesh = a.case.mesh
        if a.case.world_size == 1:
            # Whatever the axes, nothing is sharded, and nothing replicated.
            handed = {unit.takes_mesh for unit in a.options.values()}
            yield "mesh", "one rank, mixed" if len(handed) > 1 else "one rank"
        elif mesh is None:
            alone = a.case.tensor_parallel is not None and data_ranks(a.case) == 1
            yield "mesh", "one shard" if alone else "no"
        elif mesh.replicate > 1 or (mesh.shard == 1 and a.case.tensor_parallel is not None):
            # One shard is apart: ``_init_core_state`` in fsdp/_init_utils.py takes a shard group of
            # one rank for a world of one, and never synchronises the replicas (pytorch issue
            # 154888).
            yield "mesh", "both" if mesh.shard > 1 else "one shard"
        else:
            yield "mesh", "one replica"

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """The axes."""
        if case.mesh is not None:
            yield "mesh", case.mesh.words()

    def check(self, a: Anatomy) -> None:
        """It has as many places as there are ranks, and units that are sharded over it.

        FSDP1 says that a mesh does not go with local state dicts.
        """
        case, mesh = a.case, a.case.mesh
        if mesh is None:
            return
        if mesh.replicate * mesh.shard != (ranks := data_ranks(case)):
            of = "world_size" if ranks == case.world_size else "ranks with data of their own"
            raise CaseError(f"{mesh.words()} is not {of}={ranks}", path="$.mesh")
        if not a.fsdp1:
            return
        if not any(unit.takes_mesh for unit in case.plan.units):
            raise CaseError("fsdp1 has no unit with a hybrid strategy", path="$.mesh")
        for i, op in enumerate(case.program):
            # ``_set_use_dtensor`` in fsdp/_state_dict_utils.py raises for it.
            if op.saves_local:
                raise CaseError("form='local' goes with no mesh", path=f"$.program[{i}].form")

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """One dimension; fewer ranks along one of the two."""
        mesh, replace = case.mesh, msgspec.structs.replace
        if mesh is None:
            return
        plain = with_plans(case, lambda plan: with_strategies(plan, _PLAIN))
        yield Simpler(replace(plain, mesh=None), "2-D mesh")
        smaller = [(n, mesh.shard) for n in range(1, mesh.replicate)]
        smaller += [(mesh.replicate, n) for n in range(1, mesh.shard)]
        for replicas, shards in smaller:
            size = replicas * shards * (case.world_size // data_ranks(case))
            # On one rank nothing is sharded and nothing reduced: another case, not a smaller one.
            if size > 1:
                less = Mesh(replicate=replicas, shard=shards)
                yield Simpler(replace(case, mesh=less, world_size=size))

    def on_ranks(self, case: CaseSpec, size: int) -> CaseSpec:
        """More or fewer along one axis: one that has several ranks, or may have."""
        mesh, told = case.mesh, case.tensor_parallel
        if mesh is None:
            return case
        if told is not None and size % told.size == 0:
            size //= told.size
        replicas, shards = mesh.replicate, mesh.shard
        if size % shards == 0 and (replicas > 1 or size % replicas):
            replicas = size // shards
        elif size % replicas == 0:
            shards = size // replicas
        return msgspec.structs.replace(case, mesh=Mesh(replicate=replicas, shard=shards))
