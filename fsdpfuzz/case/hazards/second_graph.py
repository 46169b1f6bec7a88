"""Graphs of a unit that go past the hook on an earlier one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.checkpoints import recomputed_around
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.hazards.unit_calls import calls_for_backward
from fsdpfuzz.case.operations.forward import most_recorded
from fsdpfuzz.case.paths import within

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


class SecondGraphDimension(Hazard):
    """Whether a backward may come to another graph of a unit than the one with the hook."""

    name = "second_graph"
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "second_graph": Feature(
            about="on when a forward records gradients for nothing, as its loss is thrown away or "
            "an exception ends it, and another one has the next backward; or several record some "
            "before a backward that recomputes the unit, with its hooks, or what it manages in a "
            "reentrant way, or of which one may leave that out (fsdp1 only)",
            group="Training",
            # In few programs, most of which are known to fail: no pair is waited for.
            values=("off",),
            open=True,
            apis=("fsdp1",),
        ),
    }

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Of one unit; a graph that is left behind is one of all units."""
        if a.fsdp1:
            again = most_recorded(a.case) > 1 and _made_apart(a, path)
            yield "second_graph", on(again or leaves_a_graph(a))


# A forward that leaves a parameter out has the hook on no node of its graph. What a reentrant
# checkpoint makes again takes the parameters as the last forward made them.
def _made_apart(a: Anatomy, path: str) -> bool:
    """Whether the graph that backward comes to may be another than that of a unit's forward."""
    regions = [*a.optional, *(c.path for c in a.case.checkpoints if c.reentrant)]
    inside = any(within(p.fqn, region) for p in a.owned[path] for region in regions)
    return inside or bool(recomputed_around(a, path))


# The hook that reduces a flat parameter's gradient hangs on the node that the first graph made for
# it (``_register_post_backward_hook`` in fsdp/_runtime_utils.py), until the end of a backward takes
# it off.
@lru_cache(maxsize=64)
def leaves_a_graph(a: Anatomy) -> bool:
    """Whether a forward with a backward follows one whose gradients nobody asks for."""
    left = False
    for i, op, now in a.situations(0):
        if op.gives_gradients or op.renews or op.starts_over:
            left = False
        elif op.interrupts:
            left = True
        elif op.waits and left:
            return True
        elif not op.waits and calls_for_backward(a.at(i), op, now):
            left = True
    return False
