"""``sharding_strategy`` of ``FullyShardedDataParallel``, and over which ranks a unit is sharded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.named_axes import dims, named_mesh
from fsdpfuzz.case.recipe import Global, Value, Variable, call
from fsdpfuzz.case.tensor_parallel import data_ranks
from fsdpfuzz.case.units.base import Option
from fsdpfuzz.case.units.replicas import is_replica
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec
    from fsdpfuzz.case.units.configured import Configuration
    from fsdpfuzz.case.wrap import Unit

Sharding = Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"]
HYBRID: tuple[Sharding, ...] = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
"""Those that take a mesh: sharded over one of its axes, replicated over the other."""
KEPT_WHOLE: tuple[Sharding, ...] = ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
"""Those that do not reshard after forward."""
_BY_NUMBER = {
    "1": "FULL_SHARD",
    "2": "SHARD_GRAD_OP",
    "3": "NO_SHARD",
    "4": "HYBRID_SHARD",
    "5": "HYBRID_SHARD_ZERO2",
}
"""As accelerate numbers and names them."""


def shards(case: CaseSpec, unit: Unit | None) -> int:
    """The number of ranks in the process group of a unit; all of them for None."""
    if is_replica(unit):
        return 1
    over_mesh = case.mesh is not None and unit is not None and unit.takes_mesh
    return case.mesh.shard if case.mesh is not None and over_mesh else data_ranks(case)


def is_whole(a: Anatomy, path: str) -> bool:
    """Whether fsdp1 does not shard what the unit at ``path`` manages, though there is something."""
    # ``_init_core_state`` in fsdp/_init_utils.py turns any strategy into NO_SHARD over one rank.
    unit = a.fsdp1_options.get(path)
    whole = (unit is not None and unit.sharding == "NO_SHARD") or a.shards(path) == 1
    return whole and bool(a.owned[path])


def mesh_of(a: Anatomy) -> Value:
    """The mesh that units are handed; None for a case in which none is.

    Beside it, with tensor parallelism, the one that modules are cut over.
    """
    device, mesh, told = Variable("device"), a.case.mesh, a.case.tensor_parallel
    if a.case.spmd_mesh is not None:
        return named_mesh(a.case, a.case.spmd_mesh)
    if told is not None and mesh is not None:
        axes = (mesh.replicate, mesh.shard, told.size)
        return call("steps.mesh.replicated_beside_tensors", device, *axes)
    if told is not None:
        return call("steps.mesh.beside_tensors", device, told.size)
    if mesh is not None:
        return call("steps.mesh.replicated", device, mesh.replicate, mesh.shard)
    return None if a.fsdp1 else call("steps.mesh.over_all", device)


def arguments(a: Anatomy, unit: Unit, mesh: Value) -> dict[str, Value]:
    """How FSDP is told over which ranks a unit is sharded; ``mesh`` is that of `mesh_of`."""
    if a.fsdp1:
        # Any other strategy takes a mesh's first dimension, that of the replicas, for its shards
        # (``_init_process_group_state`` in fsdp/_init_utils.py).
        return {"device_mesh": mesh} if unit.takes_mesh else {}
    if a.case.spmd_mesh is not None:
        return {"mesh": mesh, "dp_mesh_dims": dims(a.case, a.case.spmd_mesh)}
    return {"mesh": mesh}


def is_replicated(a: Anatomy, path: str) -> bool:
    """Whether the unit at ``path`` is sharded over one axis of a mesh, and replicated over one."""
    return a.case.mesh is not None and a.options[path].takes_mesh


class ShardingOption(Option):
    """What a unit shards: parameters, gradients and optimizer state, not all of them, or none."""

    name = "sharding"
    configured_by: ClassVar[tuple[str, ...]] = (
        "fsdp_sharding_strategy",
        "fsdp_reshard_after_forward",
    )
    feature: ClassVar[Feature] = Feature(
        about="FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, _HYBRID_SHARD_ZERO2, mixed "
        "(fsdp1 only)",
        group="Sharding",
        values=("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", *HYBRID, "mixed"),
        apis=("fsdp1",),
    )

    def configured(self, kind: type[Unit], config: Configuration) -> Any:
        """By name or by number, also where only what fsdp2 calls it is there."""
        asked = next(
            (text for n in self.configured_by if (text := config.own.get(n))), _BY_NUMBER["1"]
        )
        if asked not in (*_BY_NUMBER, *_BY_NUMBER.values()):
            raise config.wrong(self.configured_by[0], ", ".join(_BY_NUMBER.values()), asked)
        named = _BY_NUMBER.get(asked, asked)
        return HYBRID[1] if named == _BY_NUMBER["5"] else named

    def text(self, value: Any) -> str:
        """The strategy's name."""
        return str(value)

    def taken(self, a: Anatomy, unit: Unit) -> str:
        """Over one rank what FSDP makes of any; see `is_whole`."""
        # Over one of several ranks a hybrid strategy is that, too, but has replicas.
        return "NO_SHARD" if a.case.world_size == 1 else super().taken(a, unit)

    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """``sharding_strategy``."""
        yield "sharding_strategy", Global(f"torch.distributed.fsdp.ShardingStrategy.{value}")

    def check_unit(self, a: Anatomy, unit: Unit, at: str) -> None:
        """A hybrid strategy has a mesh."""
        if a.fsdp1 and unit.takes_mesh and a.case.mesh is None:
            raise CaseError("a hybrid strategy needs a mesh", path=at)

    def read(self, told: Mapping[str, Any]) -> Any:
        """The strategy of fsdp1."""
        return told.get("strategy")

    def words(self, value: Any) -> str:
        """The strategy's name."""
        return str(value)

    def needed(self, value: Any) -> str:
        """The strategy's name."""
        return str(value)
