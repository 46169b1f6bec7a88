"""Recomputations that call a unit once more though nothing in it is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.checkpoints import Checkpoint, recomputed_around
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.hazards.unit_calls import calls_for_backward
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.sides import side_of

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


class RunThroughDimension(Hazard):
    """Where a checkpoint's recomputation comes to a unit, or to the root of units."""

    name = "run_through"
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "run_through": Feature(
            about="on when a checkpoint that is not reentrant recomputes the unit, or one of its "
            "modules, with its hooks, and it is called several times in a forward, or another "
            "checkpoint lies in it, or behind it in what is recomputed (fsdp2 only)",
            group="Training",
            # Of few units, most of which are known to fail: no pair is waited for.
            values=("off",),
            open=True,
            apis=("fsdp2",),
        ),
        "recomputed_root": Feature(
            about="on when a checkpoint around the outermost unit that holds the unit recomputes "
            "it, with its hooks (fsdp1 only)",
            group="Training",
            values=("off",),
            open=True,
            apis=("fsdp1",),
        ),
    }

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Of one unit."""
        if a.fsdp1:
            roots = [root for root in a.roots if within(path, root)]
            yield "recomputed_root", on(any(recomputed_around(a, root) for root in roots))
        else:
            yield "run_through", on(path in units_run_through(a))


# A recomputation stops when it has made again what was saved (``set_checkpoint_early_stop`` in
# torch/utils/checkpoint.py). What lies in a checkpoint further in saves nothing for the outer one
# but the frame in which it is to be made again: so the outer one has to come that far. That of an
# earlier call comes when the backward of a later one has ended.
@lru_cache(maxsize=64)
def units_run_through(a: Anatomy) -> frozenset[str]:
    """Units that a recomputation calls after their backward, or on its way to a checkpoint."""
    recomputing = [c for c in a.case.checkpoints if c.recomputes]
    outer = [c for c in recomputing if not c.reentrant]
    found: set[str] = set()
    for rank in a.telling_ranks if outer else ():
        for i, op, now in a.situations(rank):
            b = a.at(i)
            paths = [call.path for call in calls_for_backward(b, op, now)]
            for checkpoint in outer:
                inner = [c for c in recomputing if c is not checkpoint]
                found.update(_run_through(b, paths, checkpoint, inner))
    return frozenset(found)


def _run_through(
    a: Anatomy, paths: list[str], outer: Checkpoint, inner: list[Checkpoint]
) -> Iterator[str]:
    """Units in ``outer`` that are called several times, or before what an inner one recomputes."""
    # What is around a unit has begun before the unit's own hooks run.
    around = {c.path for c in inner if side_of(a, c) == "around"}
    ends = {c.path for c in inner if within(c.path, outer.path)}
    last = max((n for n, path in enumerate(paths) if path in ends), default=-1)
    times = Counter(paths)
    for n, path in enumerate(paths):
        again = times[path] > 1 or n < last or (n == last and path not in around)
        held = path != outer.path or side_of(a, outer) == "around"
        if path in a.unit_at and again and held and within(path, outer.path):
            yield a.unit_at[path]
