"""The axes of a mesh by whose names ``fully_shard`` is told what is sharded.

``dp_mesh_dims`` of ``fully_shard`` (pytorch PR 176334): what it shards is replicated over the axes
of the data already, each module takes and puts out a DTensor of the batch, and the mesh may have
two axes of shards, which FSDP flattens into one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fsdpfuzz.case.base import Part, Ranks, ranks_in_words
from fsdpfuzz.case.parallel import linear_layers
from fsdpfuzz.case.recipe import MODEL, Do, Inside, Items, Value, Variable, call, literal
from fsdpfuzz.case.tensor_parallel import cut_dims, data_ranks

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

_DIMS = "torch.distributed.fsdp.DataParallelMeshDims"


class SpmdMesh(Part, frozen=True, kw_only=True):
    """``dp_mesh_dims`` names the axis that ``fully_shard`` shards over, or two of them."""

    inner: Ranks | None = None
    """Ranks along the second of two axes that it flattens into one; None where there is one."""

    def words(self) -> str:
        """``of two axes of shards, the second over 2 ranks``."""
        if self.inner is None:
            return "of one axis of shards"
        return f"of two axes of shards, the second over {ranks_in_words(self.inner)}"


def ranks_of_shards(case: CaseSpec) -> int:
    """Over how many ranks each replica is sharded."""
    return data_ranks(case) if case.mesh is None else case.mesh.shard


# A name of their own: else a mesh of ``steps.mesh`` could be equal to one of these.
def shard_axes(case: CaseSpec, told: SpmdMesh) -> Mapping[str, int]:
    """The axes that are sharded over, by name, with the ranks along each."""
    ranks = ranks_of_shards(case)
    if told.inner is None:
        return {"dp_shard": ranks}
    return {"dp_shard": ranks // told.inner, "dp_inner": told.inner}


def named_mesh(case: CaseSpec, told: SpmdMesh) -> Value:
    """The mesh with all axes: that of the replicas first, that of tensor parallelism last."""
    replicas = {} if case.mesh is None else {"dp_replicate": case.mesh.replicate}
    tensors = {} if case.tensor_parallel is None else {"tp": case.tensor_parallel.size}
    axes = {**replicas, **shard_axes(case, told), **tensors}
    names, shape = literal(tuple(axes)), literal(tuple(axes.values()))
    return call("steps.spmd_mesh.named", Variable("device"), shape, names)


def dims(case: CaseSpec, told: SpmdMesh) -> Value:
    """Which axis is for what, as ``fully_shard`` takes it."""
    names = tuple(shard_axes(case, told))
    replicas: dict[str, Value] = {} if case.mesh is None else {"replicate": "dp_replicate"}
    return call(_DIMS, shard=literal(names) if len(names) > 1 else names[0], **replicas)


def spread(a: Anatomy, mesh: Value) -> Iterator[Do]:
    """What is done with a model before any of it is a unit."""
    if a.case.spmd_mesh is None:
        return
    along = cut_dims(a)
    for path in computing(a):
        cut: dict[str, Value] = {}
        if a.case.tensor_parallel is not None:
            names = [p.fqn for p in a.by_path[path].parameters if along.get(p.fqn) is not None]
            parts = [part for fqn in names for part in (fqn.rpartition(".")[2], along[fqn])]
            cut["cut"] = Items("dict", tuple(parts))
        module = Inside("model", path) if path else MODEL
        yield Do(call=call("steps.spmd_mesh.spread", module, mesh, **cut), who="fsdp")


def computing(a: Anatomy) -> tuple[str, ...]:
    """The modules that DTensors can be handed: linears, embeddings and norms called as such."""
    nodes = ((place.path, place.node) for place in a.places if place.node is not None)
    own = (path for path, node in nodes if node.cut_by_rows is not None or node.normalises)
    return tuple(dict.fromkeys((*linear_layers(a), *own)))
