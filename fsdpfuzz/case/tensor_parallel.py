"""Tensor parallelism below fsdp2: modules are cut over one axis of a mesh, units over the other.

Ranks of one tensor-parallel group are neighbours and take the same batch; FSDP shards over the
other axis, that of the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from fsdpfuzz.case.base import MAX_RANKS, Part, on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Simpler
from fsdpfuzz.case.modules import Parameter
from fsdpfuzz.case.parallel import Parallel, Style, check_module, check_pair
from fsdpfuzz.case.paths import join
from fsdpfuzz.case.recipe import Value, Variable, call
from fsdpfuzz.case.sequence_parallel import check_rows, handed_on
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

ANY_CUT: Mapping[str, tuple[str, ...]] = {"tensor_parallel": ("on",)}
"""What excludes it says so."""
_GOES_WITHOUT: Mapping[str, tuple[str, ...]] = {
    "flips": ("some", "all"),
}
"""What nothing is cut beside; see `TensorParallelDimension.check`."""


class TensorParallel(Part, frozen=True, kw_only=True):
    """``parallelize_module`` over ``size`` ranks, before ``fully_shard`` over the others."""

    size: Annotated[int, Meta(ge=2, le=MAX_RANKS)] = 2
    modules: Annotated[tuple[Parallel, ...], Meta(max_length=64)]
    hands_on: bool = False
    """Whether what none but ``modules`` put out and take stays cut by rows; else it is whole."""
    sequence_dim: Literal[0, 1] = 0
    """The dimension of the data that has the rows: that of the batch, or that of the sequence."""
    use_local_output: bool = True
    """Whether plain tensors, and not DTensors, are handed on where they are cut."""

    @property
    def cuts_data(self) -> bool:
        """Whether ranks may be given a part of the rows."""
        return self.hands_on or any(part.style == "sequence" for part in self.modules)

    def words(self) -> str:
        """``over 2 ranks: 0 into 2, rows handed on``."""
        words = [part.words() for part in self.modules]
        if self.hands_on:
            words.append("rows handed on")
        if self.sequence_dim:
            words.append(f"along {self.sequence_dim}")
        if not self.use_local_output:
            words.append("as DTensors")
        return f"over {self.size} ranks: {', '.join(words)}"


def data_ranks(case: CaseSpec) -> int:
    """How many batches there are at a time: ranks, but those that share one count once."""
    told = case.tensor_parallel
    return case.world_size if told is None else case.world_size // told.size


def place_of(case: CaseSpec, rank: int) -> int:
    """A rank's number among those that have batches of their own."""
    told = case.tensor_parallel
    return rank if told is None else rank // told.size


def sharing(case: CaseSpec, rank: int) -> tuple[int, ...]:
    """The ranks that take the same batch as ``rank``."""
    return tuple(
        other for other in range(case.world_size) if place_of(case, other) == place_of(case, rank)
    )


def batch_of(case: CaseSpec) -> Value:
    """The number of a rank's batch, as recipes say it."""
    told = case.tensor_parallel
    if told is None:
        return Variable("rank")
    return call("steps.mesh.batch_of", Variable("rank"), told.size)


def cut_dims(a: Anatomy) -> Mapping[str, int | None]:
    """The dimension along which each parameter is cut over the tensor-parallel axis.

    None for one that each rank of the axis has whole; left out is what is not parallelised.
    """
    found: dict[str, int | None] = {}
    for path, style in _styles(a.case):
        node = a.by_path[path].node
        if style == "sequence":
            found.update(dict.fromkeys((p.fqn for p in a.by_path[path].parameters), None))
        rows = None if node is None else node.cut_by_rows
        if rows is None:
            continue
        found[join(path, "weight")] = rows if style == "rowwise" else 1 - rows
        if join(path, "bias") in a.by_fqn:
            found[join(path, "bias")] = 0 if style == "colwise" else None
    return found


def local(a: Anatomy, parameter: Parameter) -> Parameter:
    """What FSDP is given of a parameter: with the shape that one rank has of it."""
    told = a.case.tensor_parallel
    dim = None if told is None else cut_dims(a).get(parameter.fqn)
    if told is None or dim is None:
        return parameter
    shape = parameter.shape
    return replace(parameter, shape=(*shape[:dim], shape[dim] // told.size, *shape[dim + 1 :]))


# DTensor's rule for ``embedding_dense_backward`` gives each rank the gradient of all rows, and
# ``FSDPParam._get_grad_inner_tensor`` takes this rank's part of it.
def cut_by_reduction(a: Anatomy) -> frozenset[str]:
    """Parameters whose gradient is whole on each rank until it is reduced."""
    dims = cut_dims(a)
    rows = (join(path, "weight") for path, style in _styles(a.case) if style == "rowwise")
    return frozenset(name for name in rows if dims.get(name) == 0)


def locally(a: Anatomy, parameters: Sequence[Parameter]) -> Sequence[Parameter]:
    """`local` of each."""
    if a.case.tensor_parallel is None:
        return parameters
    return [local(a, parameter) for parameter in parameters]


def _styles(case: CaseSpec) -> Iterator[tuple[str, Style]]:
    for part in () if case.tensor_parallel is None else case.tensor_parallel.modules:
        yield from part.styles()


class TensorParallelDimension(Dimension):
    """None, or over how many ranks which modules are cut."""

    name = "tensor_parallel"
    of_model: ClassVar[bool] = True
    features: ClassVar[Mapping[str, Feature]] = {
        "tensor_parallel": Feature(
            about="on when linears or embeddings are parallelised before fully_shard (fsdp2 only)",
            group="Sharding",
            values=ON,
            apis=("fsdp2",),
            excludes={"on": _GOES_WITHOUT},
        ),
        "sequence_parallel": Feature(
            about="no, alone (norms are given a part of the rows), handed on (also from one "
            "parallelised module to the next; fsdp2 only)",
            group="Sharding",
            # In one program of a hundred, as that of many ranks is: no pair is waited for.
            values=("no",),
            open=True,
            apis=("fsdp2",),
        ),
        "cut_output": Feature(
            about="no, local, DTensor: as what data that is cut over ranks goes from one module to "
            "the next (fsdp2 only)",
            group="Sharding",
            values=("no",),
            open=True,
            apis=("fsdp2",),
        ),
    }
    parameter_features: ClassVar[Mapping[str, Feature]] = {
        "cut_along": Feature(
            about="no, rows, columns, copied: how a parameter lies on the ranks of its "
            "tensor-parallel group (fsdp2 only)",
            group="Parameters",
            values=("no", "rows", "columns", "copied"),
            apis=("fsdp2",),
        )
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether there are any, and what of the data is cut."""
        if a.fsdp1:
            return
        told, rows = a.case.tensor_parallel, handed_on(a)
        yield "tensor_parallel", on(told is not None)
        alone = told is not None and any(part.style == "sequence" for part in told.modules)
        yield "sequence_parallel", "handed on" if rows.takes else "alone" if alone else "no"
        paired = told is not None and any(part.into is not None for part in told.modules)
        local = told is None or told.use_local_output
        yield "cut_output", ("local" if local else "DTensor") if rows.takes or paired else "no"

    def parameter_values(self, a: Anatomy, fqn: str) -> Iterator[tuple[str, str]]:
        """Along which dimension it is cut."""
        if a.fsdp1:
            return
        dims = cut_dims(a)
        along = {None: "copied", 0: "rows", 1: "columns"}
        yield "cut_along", along[dims[fqn]] if fqn in dims else "no"

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """What is cut over how many."""
        if case.tensor_parallel is not None:
            yield "tensors", case.tensor_parallel.words()

    def check(self, a: Anatomy) -> None:
        """The ranks are enough, each module can be cut, and what else there is goes with it."""
        told, at = a.case.tensor_parallel, "$.tensor_parallel"
        if told is None:
            return
        if a.fsdp1 or any(plan.fsdp1 for plan in a.under_each_plan):
            raise CaseError("fsdp2 alone shards what is parallelised already", path=at)
        if a.imported is not None:
            raise CaseError("of an imported model it is not known what is called", path=at)
        if not told.modules:
            raise CaseError("leave it out where no module is parallelised", path=f"{at}.modules")
        if a.case.world_size % told.size:
            text = f"{told.size} does not divide world_size={a.case.world_size}"
            raise CaseError(text, path=f"{at}.size")
        if told.cuts_data:
            check_rows(a, told, at)
        seen: set[str] = set()
        for i, part in enumerate(told.modules):
            here = f"{at}.modules[{i}]"
            for (path, style), field in zip(part.styles(), ("module", "into"), strict=False):
                if path in seen:
                    raise CaseError(f"{path!r} stands here twice", path=f"{here}.{field}")
                seen.add(path)
                check_module(a, path, style, told.size, f"{here}.{field}")
            if part.into is not None:
                check_pair(a, part, f"{here}.into")
        self._check_rest(a, at)

    def _check_rest(self, a: Anatomy, at: str) -> None:
        case = a.case
        # ``save_on_cpu`` copies what is saved into a plain tensor (torch/autograd/graph.py):
        # "aten.copy_.default got mixed torch.Tensor and DTensor".
        if any(c.offloads for c in case.checkpoints):
            raise CaseError("goes with no activations that are offloaded", path=at)
        # FSDPMemTracker counts the tensors of FSDP by the sizes of its parameters alone.
        if case.probes:
            raise CaseError("goes with no memory tracker", path=at)
        for i, op in enumerate(case.program):
            here = f"$.program[{i}]"
            if not op.takes_tensor_parallel:
                raise CaseError(f"{op.kind()} goes with no tensor parallelism", path=here)
            # Ranks of a tensor-parallel group run the same collectives.
            if op.parts_ranks:
                raise CaseError("ranks that part go with no tensor parallelism", path=here)
            # ``_get_total_norm`` in torch/nn/utils/clip_grad.py stacks the norms of all gradients:
            # "All operands in aten.stack.default must have the same mesh".
            apart = case.spmd_mesh is None
            if apart and op.joins_gradients and any(p.fqn not in cut_dims(a) for p in a.distinct):
                raise CaseError("clip gradients that lie on two meshes", path=here)

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """None; data whole, local, along the batch; a module less; one of a pair by itself."""
        told = case.tensor_parallel
        if told is None:
            return
        yield Simpler(_whole(case), "tensor parallelism")
        plainer = {"hands_on": False, "use_local_output": True, "sequence_dim": 0}
        for name, value in plainer.items():
            if getattr(told, name) != value:
                less = msgspec.structs.replace(told, **{name: value})
                yield Simpler(msgspec.structs.replace(case, tensor_parallel=less))
        for i, part in enumerate(told.modules):
            before, after = told.modules[:i], told.modules[i + 1 :]
            instead: list[tuple[Parallel, ...]] = [()] if before or after else []
            if part.into is not None:
                instead += [(Parallel(module=p, style=style),) for p, style in part.styles()]
            for parts in instead:
                less = msgspec.structs.replace(told, modules=(*before, *parts, *after))
                yield Simpler(msgspec.structs.replace(case, tensor_parallel=less))

    def on_ranks(self, case: CaseSpec, size: int) -> CaseSpec:
        """None where they cannot be shared out evenly."""
        told = case.tensor_parallel
        if told is None or size % told.size == 0:
            return case
        return msgspec.structs.replace(case, tensor_parallel=None)


def _whole(case: CaseSpec) -> CaseSpec:
    """The case with nothing cut; each replica then has more shards."""
    told, mesh, replace = case.tensor_parallel, case.mesh, msgspec.structs.replace
    if told is not None and mesh is not None:
        mesh = replace(mesh, shard=mesh.shard * told.size)
    return replace(case, tensor_parallel=None, mesh=mesh)
