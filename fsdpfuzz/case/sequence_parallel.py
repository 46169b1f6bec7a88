"""Sequence parallelism: what is handed on between parallelised modules stays cut by its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from fsdpfuzz.case.modules import Brought, Child
from fsdpfuzz.case.modules.base import Around
from fsdpfuzz.case.paths import join, within
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.tensor_parallel import TensorParallel


class HandedOn(NamedTuple):
    """Parallelised modules, or pairs by their first, that have to do with rows in parts."""

    takes: frozenset[str]
    puts_out: frozenset[str]


@dataclass(slots=True, eq=False)
class _Data:
    """What modules hand on, as long as it has the same rows on the same ranks."""

    taken_by: set[str] = field(default_factory=set)
    put_out_by: set[str] = field(default_factory=set)
    private: bool = True
    """Whether none but parallelised modules and functions of single elements see it."""


class _Flow:
    """A forward that is followed through the model, from one parallelised module to the next."""

    def __init__(self, a: Anatomy) -> None:
        told = a.case.tensor_parallel
        self.found: list[_Data] = []
        # Inside of experts: each is given as many rows as go to it, and they have no length.
        self._flat = False
        self._a = a
        self._first = {part.module: part for part in (told.modules if told is not None else ())}
        self._second = {part.into: part for part in self._first.values() if part.into is not None}
        # What the program calls by itself is given whole data, and so is the loss; what a module
        # calls out of its turn meets the data of another place.
        self._called = {"", *(op.called for op in a.case.program if op.runs_model)}
        for place in a.places:
            if place.node is not None and (inner := place.node.called_inside()):
                self._called.add(join(place.path, inner))

    def through(self, path: str, data: _Data) -> _Data:
        """What the module at ``path`` makes of it."""
        called = path in self._called
        data.private &= not called
        out = self._out(path, data)
        out.private &= not called
        return out

    def _out(self, path: str, data: _Data) -> _Data:
        if (pair := self._second.get(path)) is not None:
            return self._made(pair.module)
        if (part := self._first.get(path)) is not None:
            data.taken_by.add(path)
            # Between the two of a pair it is columns that ranks have some of.
            return self._made(path) if part.into is None else _Data(private=False)
        node = self._a.by_path[path].node
        if node is None or not node.takes_rows:
            data.private = False
            flat, self._flat = self._flat, self._flat or (node is not None and node.hands_out_rows)
            for inner in self._inside(path):
                self.through(inner, _Data(private=False)).private = False
            self._flat = flat
            return self._made()
        out = data
        for inner in self._inside(path):
            out = self.through(inner, out)
        if isinstance(node, Around) and out is not data:
            # The body's output is added to its input.
            data.taken_by |= out.taken_by
            data.put_out_by |= out.put_out_by
            data.private &= out.private
            self.found = [other for other in self.found if other is not out]
            return data
        return out

    def _made(self, *parts: str) -> _Data:
        made = _Data(put_out_by=set(parts), private=bool(parts) and not self._flat)
        self.found.append(made)
        return made

    def _inside(self, path: str) -> Iterator[str]:
        place = self._a.by_path[path]
        for inner in place.node.inside(place.width_in, "") if place.node is not None else ():
            if isinstance(inner, Child):
                yield join(path, inner.name)
            elif isinstance(inner, Brought) and inner.child is not None:
                yield join(path, inner.name, inner.child.name)


@lru_cache(maxsize=64)
def handed_on(a: Anatomy) -> HandedOn:
    """The modules that take rows in parts, and those that put them out so; none if all is whole."""
    told = a.case.tensor_parallel
    if told is None or not told.hands_on:
        return HandedOn(frozenset(), frozenset())
    flow = _Flow(a)
    flow.through("", _Data())
    cut = [data for data in flow.found if data.private and data.taken_by]
    return HandedOn(
        frozenset(module for data in cut for module in data.taken_by),
        frozenset(module for data in cut for module in data.put_out_by),
    )


# ``DTensor.from_local`` is not told how many rows there are in all.
def check_rows(a: Anatomy, told: TensorParallel, at: str) -> None:
    """The rows can be shared out evenly."""
    if told.sequence_dim and a.case.inputs.length is None:
        raise CaseError("the data has no sequence", path=f"{at}.sequence_dim")
    handing = [p.path for p in a.places if p.node is not None and p.node.hands_out_rows]
    for part in told.modules if told.sequence_dim else ():
        for path, style in part.styles():
            # What they are given has two dimensions, of which the second is what a norm is over.
            if style == "sequence" and any(within(path, around) for around in handing):
                raise CaseError(f"{path!r} is given rows alone", path=f"{at}.sequence_dim")
    rows = a.case.inputs.length if told.sequence_dim else a.case.inputs.batch
    if (rows or 0) % told.size:
        raise CaseError(f"there are {rows} rows, which {told.size} ranks share evenly", path=at)
