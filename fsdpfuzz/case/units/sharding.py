"""``sharding_strategy`` of ``FullyShardedDataParallel``, and over which ranks a unit is sharded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.recipe import Global, Value, Variable, call
from fsdpfuzz.case.units.base import Option

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec
    from fsdpfuzz.case.wrap import Unit

Sharding = Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]
KEPT_WHOLE: tuple[Sharding, ...] = ("SHARD_GRAD_OP",)
"""Those that do not reshard after forward."""


def shards(case: CaseSpec, unit: Unit | None) -> int:  # noqa: ARG001
    """The number of ranks in the process group of a unit; all of them for None."""
    return case.world_size


def mesh_of(a: Anatomy) -> Value:
    """The mesh that units are handed; None for a case in which none is."""
    return None if a.fsdp1 else call("steps.mesh.over_all", Variable("device"))


def arguments(a: Anatomy, unit: Unit, mesh: Value) -> dict[str, Value]:  # noqa: ARG001
    """How FSDP is told over which ranks a unit is sharded; ``mesh`` is that of `mesh_of`."""
    return {} if a.fsdp1 else {"mesh": mesh}


class ShardingOption(Option):
    """What a unit shards: parameters, gradients and optimizer state, not all of them, or none."""

    name = "sharding"
    feature: ClassVar[Feature] = Feature(
        about="FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, mixed (fsdp1 only)",
        group="Sharding",
        values=("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "mixed"),
        apis=("fsdp1",),
    )

    def text(self, value: Any) -> str:
        """The strategy's name."""
        return str(value)

    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """``sharding_strategy``."""
        yield "sharding_strategy", Global(f"torch.distributed.fsdp.ShardingStrategy.{value}")

    def words(self, value: Any) -> str:
        """The strategy's name."""
        return str(value)

    def needed(self, value: Any) -> str:
        """The strategy's name."""
        return str(value)
