"""A mesh by whose names ``fully_shard`` is told over which axes parameters are sharded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.dimension import Dimension, Feature, Rejection, Simpler
from fsdpfuzz.case.named_axes import SpmdMesh, computing, ranks_of_shards
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.tensor_parallel import data_ranks
from fsdpfuzz.case.units.reshard_after_forward import resharded_over_some
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec


def _refused(a: Anatomy) -> bool:
    return a.case.spmd_mesh is not None and resharded_over_some(a)


class SpmdMeshDimension(Dimension):
    """None, or over how many axes of a named mesh parameters lie before they are sharded."""

    name = "spmd_mesh"
    of_model: ClassVar[bool] = True
    newer: ClassVar[tuple[str, ...]] = ("fully_shard(dp_mesh_dims)",)
    features: ClassVar[Mapping[str, Feature]] = {
        "spmd_mesh": Feature(
            about="no, one axis, two axes (flattened into one): of shards in a mesh by whose names "
            "fully_shard is told, with parameters that are DTensors on it (fsdp2 only)",
            group="Sharding",
            # Beside few kinds of module: no pair is waited for.
            values=("no",),
            open=True,
            apis=("fsdp2",),
        )
    }
    rejections: ClassVar[tuple[Rejection, ...]] = (
        Rejection(
            name="fsdp2_resharded_by_name",
            why="on a mesh that is told by name no unit is resharded over so many ranks",
            pattern=r"reshard_after_forward as int is not yet supported with SPMD mesh",
            source="fully_shard",
            asked=_refused,
        ),
    )

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """How many axes, if any."""
        if not a.fsdp1:
            told = a.case.spmd_mesh
            one = told is not None and told.inner is None
            yield "spmd_mesh", "no" if told is None else "one axis" if one else "two axes"

    def asked(self, a: Anatomy) -> bool:
        """Where there is one."""
        return a.case.spmd_mesh is not None

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """Its axes."""
        if case.spmd_mesh is not None:
            yield "named mesh", case.spmd_mesh.words()

    def check(self, a: Anatomy) -> None:
        """Every parameter is a DTensor on it, which FSDP asks for, and all that compute can do so.

        Raises :class:`CaseError` for what else does not go with DTensors.
        """
        told, at = a.case.spmd_mesh, "$.spmd_mesh"
        if told is None:
            return
        if a.fsdp1 or any(plan.fsdp1 for plan in a.under_each_plan):
            raise CaseError("fsdp2 alone shards what lies on such a mesh", path=at)
        if a.imported is not None:
            raise CaseError("of an imported model it is not known what is called", path=at)
        cut = a.case.tensor_parallel
        if cut is not None:
            # One mesh has all axes, and one pair of hooks what goes over them between modules.
            if cut.cuts_data or any(part.into is not None for part in cut.modules):
                raise CaseError("data is whole between modules on such a mesh", path=at)
            if not cut.use_local_output:
                raise CaseError("data is no DTensor between modules on such a mesh", path=at)
        # ``aten.view`` of DTensor flattens no dimension of size 1 that is sharded over one rank.
        if data_ranks(a.case) == 1:
            raise CaseError("the batch of one rank cannot be shared out", path=at)
        ranks = ranks_of_shards(a.case)
        if told.inner is not None and ranks % told.inner:
            text = f"{told.inner} does not divide the {ranks} ranks of the shards"
            raise CaseError(text, path=f"{at}.inner")
        self._check_model(a, at)
        for plan in a.under_each_plan:
            if plan.unmanaged:
                raise CaseError(f"no unit manages {plan.unmanaged[0]!r}", path=at)
        # ``save_on_cpu`` copies what is saved into a plain tensor (torch/autograd/graph.py):
        # "aten.copy_.default got mixed torch.Tensor and DTensor".
        if any(c.offloads for c in a.case.checkpoints):
            raise CaseError("goes with no activations that are offloaded", path=at)
        for i, op in enumerate(a.case.program):
            if not op.takes_tensor_parallel:
                raise CaseError(f"{op.kind()} goes with no DTensors", path=f"$.program[{i}]")

    def _check_model(self, a: Anatomy, at: str) -> None:
        modules = set(computing(a))
        for parameter in a.parameters:
            if parameter.fqn.rpartition(".")[0] not in modules:
                # "When dp_mesh_dims is provided, all parameters must be DTensors".
                raise CaseError(f"{parameter.fqn!r} is used otherwise than as DTensor", path=at)
        for place in a.places:
            # The tensor that it puts out is a view by a function of its own, ``DTensor.to_local``:
            # autograd refuses to change that in place.
            inside = any(within(path, place.path) for path in modules)
            if inside and place.node is not None and place.node.changes_outputs:
                raise CaseError(f"{place.path!r} changes what a module puts out", path=at)
        # Hooks see inputs by position only.
        called = {op.called for op in a.case.program if op.runs_model}
        if a.case.keyword_input and called & modules:
            raise CaseError(f"{min(called & modules)!r} is given its input by keyword", path=at)
        # Each module is given parameters of its own.
        if a.source or a.brought_ties:
            raise CaseError("goes with no tied parameters", path=at)

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """None; one axis."""
        told, replace = case.spmd_mesh, msgspec.structs.replace
        if told is None:
            return
        yield Simpler(replace(case, spmd_mesh=None), "named axes")
        if told.inner is not None:
            yield Simpler(replace(case, spmd_mesh=SpmdMesh()), "a second axis of shards")

    def on_ranks(self, case: CaseSpec, size: int) -> CaseSpec:
        """One axis where the second has too many ranks."""
        told = case.spmd_mesh
        there = msgspec.structs.replace(case, world_size=size)
        if told is None or told.inner is None or ranks_of_shards(there) % told.inner == 0:
            return case
        return msgspec.structs.replace(case, spmd_mesh=SpmdMesh())
