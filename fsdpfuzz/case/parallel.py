"""Modules that can be parallelised: in which style, and which two of them as a pair."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, get_args

from fsdpfuzz.case.base import ModulePath, Part
from fsdpfuzz.case.modules import Activation, Sequential
from fsdpfuzz.case.paths import innermost, join, within
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.modules import Place

Cut = Literal["colwise", "rowwise"]
Style = Literal[Cut, "sequence"]


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


def linear_layers(a: Anatomy) -> Iterator[str]:
    """The linear layers that are called as modules with one input."""
    for place in a.places:
        if place.node is not None:
            yield from (join(place.path, name) for name in place.node.linears)


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


def check_module(a: Anatomy, path: str, style: Style, size: int, at: str) -> None:
    """It can be cut so, and is as FSDP sees it again."""
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


def check_pair(a: Anatomy, part: Parallel, at: str) -> None:
    """The second follows the first, and nothing sees what is between them."""
    if part.style != "colwise" or (part.module, part.into) not in set(pairs(a)):
        raise CaseError("the second of a pair follows the first, cut by columns", path=at)
    # What the first puts out is a part, and so is what the second takes.
    between = _between(part)
    if any(op.runs_model and op.called in between for op in a.case.program):
        raise CaseError("the program calls one of a pair by itself", path=at)
    chain = part.module.rpartition(".")[0]
    around = innermost(chain.rpartition(".")[0], a.by_path) if chain else None
    caller = None if around is None else a.by_path[around].node
    if caller is not None and caller.called_inside():
        raise CaseError("the module around it calls one of a pair by itself", path=at)


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
