"""Several modules beside each other."""

from __future__ import annotations

from fsdpfuzz.case import TOKENS, Branches, Node
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot

MAX_CHILDREN = 3


class BranchesStrategy(ModuleStrategy):
    """One to three chains, joined in any of the ways, now and then with a second input."""

    holds = True

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards one child."""
        d = growth.d
        merge = d.pick(("concat", "sum") if slot.steady else ("concat", "sum", "stack"))
        side = d.chance(12)
        equal = slot.out if merge != "concat" else None
        if side:
            equal = slot.width
        children: list[Node] = []
        while not children or (len(children) < MAX_CHILDREN and d.chance(75)):
            children.append(growth.body(slot.inside(out=equal)))
            if merge != "concat" and equal is None:
                equal = children[0].width_after(slot.width)
        return Branches(children=tuple(children), merge=merge, side=side)  # type: ignore[arg-type]

    def fits(self, growth: Growth, slot: Slot) -> bool:
        """Behind an embedding."""
        return slot.width != TOKENS


STRATEGY = BranchesStrategy()
