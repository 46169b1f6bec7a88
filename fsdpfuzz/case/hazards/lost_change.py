"""Checkpoints around a unit that do not find it as the forward did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.operations.requires_grad import alone_at
from fsdpfuzz.case.paths import within

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.operations import Op


# ``FSDPParamGroup.post_forward`` leaves a unit whole that is called in backward, and where no
# backward comes to its root nothing shards it until its next forward has ended.
@lru_cache(maxsize=64)
def under_a_lost_change(a: Anatomy) -> frozenset[str]:
    """Parameters under a checkpoint that recomputes a unit of which ``requires_grad`` is stale.

    Recomputing it in a backward that comes to nothing of its root has left it unsharded, and then
    ``requires_grad`` of one of its parameters has changed.
    """
    around = {} if a.fsdp1 else {root: _around(a, root) for root in a.roots}
    found: set[str] = set()
    stale: set[str] = set()
    behind_backward = False
    before: Mapping[str, bool] = {}
    for i, op, now in a.situations(0) if any(around.values()) else ():
        changed = {name for name, trains in before.items() if now.trained[name] != trains}
        for root in alone_at(a, _only(i)) if changed and behind_backward else ():
            if any(within(name, root) for name in changed):
                stale.update(p.fqn for p in a.parameters if _under(p.fqn, around[root]))
        if op.runs_model:
            # Its end shards the unit.
            found |= stale if op.waits else set()
            stale.clear()
        if op.runs_model or op.gives_gradients:
            behind_backward = op.gives_gradients
        before = dict(now.trained)
    return frozenset(found)


def _only(index: int) -> Callable[[int, Op], bool]:
    return lambda i, _: i == index


def _around(a: Anatomy, root: str) -> list[str]:
    """FQNs of modules with a checkpoint that recomputes a unit beside what backward comes to."""
    paths = [c.path for c in a.case.checkpoints if c.recomputes]
    return [path for path in paths if path != root and within(root, path)]


def _under(fqn: str, paths: list[str]) -> bool:
    return any(within(fqn, path) for path in paths)


class LostChangeDimension(Hazard):
    """Whether a change of ``requires_grad`` does not reach a unit that is recomputed."""

    name = "lost_change"
    parameter_features: ClassVar[Mapping[str, Feature]] = {
        "lost_change": Feature(
            about="on when the parameter lies under a checkpoint that recomputes a unit, "
            "requires_grad changes in the unit, and no backward has come to it since its latest "
            "forward, though one has recomputed it (fsdp2 only)",
            group="Training",
            # Of few cases, which are known to fail: no pair is waited for.
            values=("off",),
            open=True,
            apis=("fsdp2",),
        ),
    }

    def parameter_values(self, a: Anatomy, fqn: str) -> Iterator[tuple[str, str]]:
        """Of one parameter."""
        if not a.fsdp1:
            yield "lost_change", on(a.canonical(fqn) in under_a_lost_change(a))
