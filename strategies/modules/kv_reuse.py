"""Layers that attend to the keys and values of one module before them."""

from __future__ import annotations

from fsdpfuzz.case import Node
from fsdpfuzz.case.modules.kv_reuse import KvReuse
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class KvReuseStrategy(ModuleStrategy):
    """Two or three layers over a sequence, whose queries may share keys; counts for two leaves."""

    percent = 12

    def fits(self, growth: Growth, slot: Slot) -> bool:
        """For sequences: of a single key no query takes more or less."""
        length = growth.d.case.inputs.length
        return slot.width > 0 and length is not None and length > 1

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards two layers of one head."""
        d = growth.d
        growth.leaves -= 1
        heads = d.pick([n for n in range(1, slot.width + 1) if slot.width % n == 0])
        kv_heads = d.pick([n for n in range(1, heads + 1) if heads % n == 0])
        return KvReuse(heads=heads, kv_heads=kv_heads, layers=d.between(2, 3))


STRATEGY = KvReuseStrategy()
