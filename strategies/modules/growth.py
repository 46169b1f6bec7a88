"""A model while it grows: chains of blocks, each of a kind that has a file here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import ClassVar

from hypothesis import strategies as st

from fsdpfuzz.case import KINDS, TOKENS, Linear, Node, Sequential, places_of
from fsdpfuzz.errors import ContractError
from fsdpfuzz.strategies.drawing import Draw, Drawing, choosing

MAX_LEAVES = 7
MAX_DEPTH = 3
GO_ON = (45, 85, 70)
"""Percent of chains that go on: inner ones, the outermost after one block, and after more."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a block is to stand."""

    width: int
    """Width of the data that comes in; `TOKENS` for tokens."""
    depth: int = 1
    out: int | None = None
    """Width that the chain around it has to put out, if that is fixed."""
    steady: bool = False
    """Whether the batch has to stay as it is."""
    once: bool = True
    """Whether a forward calls it only once."""
    few: bool = False
    """Whether it may be given no row at all."""

    def inside(
        self,
        *,
        out: int | None = None,
        steady: bool = True,
        once: bool = True,
        few: bool = False,
    ) -> Slot:
        """The start of a chain within a block that stands here."""
        depth = self.depth + 1
        return Slot(self.width, depth, out, steady, self.once and once, self.few or few)


class ModuleStrategy(ABC):
    """How one kind of module is drawn."""

    holds: ClassVar[bool] = False
    """Whether other modules lie in it."""
    percent: ClassVar[int] = 50
    """In how many of 100 models the kind may occur at all."""
    percent_of_fsdp2: ClassVar[int | None] = None
    """The same for fsdp2, of what that hardly takes; None for as many."""

    @abstractmethod
    def draw(self, growth: Growth, slot: Slot) -> Node:
        """A module for the slot."""

    def fits(self, growth: Growth, slot: Slot) -> bool:
        """Whether one may stand there."""
        return slot.width != TOKENS

    def percent_for(self, api: str) -> int:
        """In how many of 100 models of an API."""
        other = self.percent_of_fsdp2 if api == "fsdp2" else None
        return self.percent if other is None else other


@dataclass(slots=True)
class Growth:
    """One model while it is drawn."""

    d: Drawing
    square: int | None
    """The one width of all layers, so that parameters can be tied; None leaves them free."""
    leaves: int = MAX_LEAVES
    allowed: dict[str, ModuleStrategy] = field(default_factory=dict)

    def grown(self, width: int) -> Node:
        """A model that takes ``width``; at least one of its parameters is used.

        Shrinks towards one ``Linear(out=1, bias=False)``, behind an embedding if it takes
        tokens.
        """
        every = module_strategies()
        for (kind, one), flag in zip(every.items(), self.d.mask(len(every)), strict=True):
            # A flag is set for half of all models; it costs no choice of its own.
            with choosing(kind):
                if flag if one.percent == 50 else self.d.chance(one.percent_for(self.d.case.api)):
                    self.allowed[kind] = one
        return self.trained(Slot(width))

    def trained(self, slot: Slot) -> Node:
        """A chain as one module, with a used parameter at least."""
        blocks = self.chain(slot)
        tree = joined(blocks)
        if not any(
            p.used and p.numel for place in places_of(tree, slot.width) for p in place.parameters
        ):
            last = self.linear(tree.width_after(slot.width), slot.out)
            tree = Sequential(children=(*blocks, last))
        return tree

    def chain(self, slot: Slot) -> list[Node]:
        """Blocks one after another, from ``slot.width`` to ``slot.out`` if that is given."""
        blocks: list[Node] = []
        width = slot.width
        while self.leaves > 0 or not blocks:
            go_on = GO_ON[0 if slot.depth > 1 else min(len(blocks), 2)] if blocks else None
            block = self.d.draw(_blocks(self, replace(slot, width=width), go_on))
            if block is None:
                break
            blocks.append(block)
            width = block.width_after(width)
        if slot.out is not None and width != slot.out:
            blocks.append(self.linear(width, slot.out))
        return blocks

    def body(self, slot: Slot) -> Node:
        """A chain as one module."""
        return joined(self.chain(slot))

    def block(self, slot: Slot) -> Node:
        """One module of a kind that fits."""
        deep = slot.depth < MAX_DEPTH and self.leaves > 1
        kinds = [
            kind
            for kind, one in self.allowed.items()
            if (deep or not one.holds) and one.fits(self, slot)
            if not (slot.few and KINDS[kind].joins_rows)
        ]
        if slot.width != TOKENS:
            # A second one keeps parameters in the majority.
            kinds = ["linear", *kinds, "linear"]
        # Also where there is no choice: tokens would need fewer and count as simpler than data.
        one = module_strategies()[kinds[self.d.between(0, len(kinds) - 1)]]
        self.leaves -= not one.holds
        return one.draw(self, slot)

    def width(self, out: int | None = None) -> int:
        """A width, most often ``out`` where a chain has to end with that."""
        if out is not None and not self.d.chance(31):
            return out
        chosen = self.d.width()
        return chosen if self.square is None else self.square

    def linear(self, width: int, out: int | None = None) -> Linear:
        """A linear layer that puts out exactly ``out``, or any width."""
        chosen = self.width() if out is None else out
        alike = self.square is not None and chosen == self.square == width
        return Linear(out=chosen, bias=self.d.chance(25 if alike else 50))


def joined(blocks: list[Node]) -> Node:
    """The blocks as one module."""
    return blocks[0] if len(blocks) == 1 else Sequential(children=tuple(blocks))


@cache
def module_strategies() -> dict[str, ModuleStrategy]:
    """How each kind of module is drawn. :class:`ContractError` for a kind without a file."""
    return {kind: _strategy_of(kind) for kind in KINDS}


def _strategy_of(kind: str) -> ModuleStrategy:
    try:
        found = import_module(f"fsdpfuzz.strategies.modules.{kind}").STRATEGY
    except (ModuleNotFoundError, AttributeError):
        raise ContractError(f"strategies/modules/{kind}.py has no STRATEGY") from None
    if not isinstance(found, ModuleStrategy):
        raise ContractError(f"STRATEGY of strategies/modules/{kind}.py is no ModuleStrategy")
    return found


@st.composite
def _blocks(draw: Draw, growth: Growth, slot: Slot, go_on: int | None) -> Node | None:
    """A block, or in some draws None: the end of a chain. None for ``go_on`` forbids that.

    A strategy of its own, flag and block together, so that shrinking can take it out.
    """
    outer, growth.d.draw = growth.d.draw, draw
    ends = go_on is not None and not growth.d.chance(go_on)
    block = None if ends else growth.block(slot)
    growth.d.draw = outer
    return block
