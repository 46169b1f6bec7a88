"""Tensor parallelism below fsdp2: modules are cut over one axis of a mesh, units over the other.

Ranks of one tensor-parallel group are neighbours and take the same batch; FSDP shards over the
other axis, that of the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, get_args

import msgspec
from msgspec import Meta

from fsdpfuzz.case.base import MAX_RANKS, ModulePath, Part, on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Simpler
from fsdpfuzz.case.modules import Activation, Parameter, Sequential
from fsdpfuzz.case.paths import join, within
from fsdpfuzz.case.recipe import Value, Variable, call
from fsdpfuzz.case.sequence_parallel import check_rows, handed_on
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.modules import Place
    from fsdpfuzz.case.spec import CaseSpec

Cut = Literal["colwise", "rowwise"]
Style = Literal[Cut, "sequence"]
ANY_CUT: Mapping[str, tuple[str, ...]] = {"tensor_parallel": ("on",)}
"""What excludes it says so."""
_GOES_WITHOUT: Mapping[str, tuple[str, ...]] = {
    "flips": ("some", "all"),
    "meta_init": (
        "reset_parameters",
        "param_init_fn",
        "sync_module_states",
        "full_state_dict",
        "broadcast",
        "assign",
        "never",
    ),
}
"""What nothing is cut beside; see `TensorParallelDimension.check`."""


_ONLY_CUT: Mapping[str, tuple[str, ...]] = {"tensor_parallel": ("off",)}


class Parallel(Part, frozen=True, kw_only=True):
    """A linear or an embedding that is cut, or a norm each rank of which is given other rows.

    With ``into``, a linear behind it, the two are a pair: the first is cut by columns, its output
    stays cut, and the second, cut by rows, takes it as it is.
    """

    module: ModulePath
    style: Style = "colwise"
    into: ModulePath | None = None

    def styles(self) -> Iterator[tuple[str, Style]]:
        """The modules, and how each is cut."""
        yield self.module, self.style
        if self.into is not None:
            yield self.into, "rowwise"

    def words(self) -> str:
        """``0 colwise`` or ``0 into 2``."""
        return f"{self.module or 'the root'} " + (
            self.style if self.into is None else f"into {self.into}"
        )


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


def pairs(a: Anatomy) -> Iterator[tuple[str, str]]:
    """Two modules of a chain with nothing between them but functions of single elements."""
    for place in a.places:
        if not isinstance(place.node, Sequential):
            continue
        first = None
        for i, child in enumerate(place.node.children):
            here = join(place.path, f"{i}")
            if child.cut_by_rows is not None:
                if first is not None:
                    yield first, here
                first = here
            elif not isinstance(child, Activation):
                first = None


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
            values=("no", "alone", "handed on"),
            apis=("fsdp2",),
            excludes=dict.fromkeys(("alone", "handed on"), _ONLY_CUT),
        ),
        "cut_output": Feature(
            about="no, local, DTensor: as what data that is cut over ranks goes from one module to "
            "the next (fsdp2 only)",
            group="Sharding",
            values=("no", "local", "DTensor"),
            apis=("fsdp2",),
            excludes=dict.fromkeys(("local", "DTensor"), _ONLY_CUT),
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
                _check_module(a, path, style, told.size, f"{here}.{field}")
            if part.into is not None:
                _check_pair(a, part, f"{here}.into")
        self._check_rest(a, at)

    def _check_rest(self, a: Anatomy, at: str) -> None:
        case = a.case
        # Three axes; and shards of a mesh of (replicate, shard) are counted as neighbours in rank.
        if case.mesh is not None:
            raise CaseError("goes with no mesh of replicas and shards", path=at)
        # `steps.meta_init` makes values that are cut over one axis.
        if case.meta_init is not None:
            raise CaseError("goes with no module on the meta device", path=at)
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
            if op.joins_gradients and any(p.fqn not in cut_dims(a) for p in a.distinct):
                raise CaseError("clip gradients that lie on two meshes", path=here)

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """None; data whole, local, along the batch; a module less; one of a pair by itself."""
        told = case.tensor_parallel
        if told is None:
            return
        yield Simpler(msgspec.structs.replace(case, tensor_parallel=None), "tensor parallelism")
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


def _check_module(a: Anatomy, path: str, style: Style, size: int, at: str) -> None:
    place = a.by_path.get(path)
    if place is None or place.node is None:
        raise CaseError(f"{path!r} is no module that can be parallelised", path=at)
    if style == "sequence":
        if not place.node.normalises:
            raise CaseError(f"{path!r} is no norm", path=at)
    elif place.node.cut_by_rows is None:
        raise CaseError(f"{path!r} is no linear and no embedding", path=at)
    # ``DTensor.from_local``, by which a pair hands on its tensor, takes equal parts for granted.
    elif (width := _width_cut(place, style)) % size:
        raise CaseError(f"{path!r} has {width} of what {size} ranks share evenly", path=at)
    names = {p.fqn for p in place.parameters}
    # ``parallelize_module`` puts new parameters in place of those that are there.
    ties = {*a.source, *a.source.values(), *a.brought_ties, *a.brought_ties.values()}
    if names & ties:
        raise CaseError(f"{path!r} has a tied parameter, of which two would be made", path=at)
    # ``fully_shard`` would leave it as a DTensor, which no step here tells from a sharded one.
    if any(b.owners[name] is None for b in a.under_each_plan for name in names):
        raise CaseError(f"no unit manages {path!r}", path=at)
    # The tensor it puts out is a view by a function of its own, ``DTensor.to_local``: autograd
    # refuses to change that in place.
    if any(p.node and p.node.changes_outputs and within(path, p.path) for p in a.places):
        raise CaseError(f"what {path!r} puts out is changed in place", path=at)
    # ``distribute_module`` registers hooks that see inputs by position only.
    called = {op.called for op in a.case.program if op.runs_model}
    if a.case.keyword_input and path in called:
        raise CaseError(f"{path!r} is given its input by keyword", path=at)


def _check_pair(a: Anatomy, part: Parallel, at: str) -> None:
    if part.style != "colwise" or (part.module, part.into) not in set(pairs(a)):
        raise CaseError("the second of a pair follows the first, cut by columns", path=at)
    # What the first puts out is a part, and so is what the second takes.
    between = _between(part)
    if any(op.runs_model and op.called in between for op in a.case.program):
        raise CaseError("the program calls one of a pair by itself", path=at)


def _between(part: Parallel) -> frozenset[str]:
    """The modules from the first of a pair to the second."""
    chain, _, first = part.module.rpartition(".")
    last = (part.into or part.module).rpartition(".")[2]
    return frozenset(join(chain, f"{i}") for i in range(int(first), int(last) + 1))


def _width_cut(place: Place, style: Cut) -> int:
    """The size that is divided, of which the weight has a dimension."""
    if style == "colwise" or place.node is None:
        return place.width_out
    return place.parameters[0].shape[place.node.cut_by_rows or 0]


def can_be_cut(a: Anatomy, size: int) -> Iterator[Parallel]:
    """Each single linear or embedding in each style that leaves equal parts."""
    for place in a.places:
        if place.node is not None and place.node.cut_by_rows is not None:
            for style in get_args(Cut):
                if _width_cut(place, style) % size == 0:
                    yield Parallel(module=place.path, style=style)
