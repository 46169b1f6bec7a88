"""Units that are whole while an optimizer changes their shards, or their gradients are clipped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.hazards.no_gradient import kept_whole
from fsdpfuzz.case.operations.requires_grad import alone_at
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.units.reshard_after_forward import ways_left
from fsdpfuzz.case.units.sharding import is_whole

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.operations import Op


# Both APIs gather nothing for a unit that is whole (``FSDPParamGroup.unshard``, ``_unshard`` in
# fsdp/_runtime_utils.py), whatever has become of its shard.
@lru_cache(maxsize=64)
def stepped_whole(a: Anatomy) -> frozenset[str]:
    """Units that a forward left whole, and no backward resharded, when the optimizer steps.

    They have gradients, and something comes behind that would show the step.
    """
    shows = [i for i, op in enumerate(a.case.program) if _shows(op)]
    steps = [
        i for i, op in enumerate(a.case.program) if op.steps_optimizer and i < max(shows, default=0)
    ]
    return _left_whole(a, steps)


# ``parameters()`` gives what is whole, and has no gradient, in place of the shards that have one
# (``FSDPParam.to_unsharded`` in fsdp/_fully_shard/_fsdp_param.py).
@lru_cache(maxsize=64)
def clipped_whole(a: Anatomy) -> frozenset[str]:
    """Units of fsdp2 that a forward left whole, with gradients, when these are clipped."""
    clips = [i for i, op in enumerate(a.case.program) if op.clips_by is not None]
    return frozenset() if a.fsdp1 else _left_whole(a, clips)


def _left_whole(a: Anatomy, when: list[int]) -> frozenset[str]:
    """Units with gradients that a forward left whole before these operations."""
    if not when:
        return frozenset()
    alone = alone_at(a, lambda i, _: i in when)
    graded = {name for i, _, now in a.situations(0) if i in when for name in now.graded}
    left = [
        path
        for path in a.units
        if any(within(path, root) for root in alone) and any(p.fqn in graded for p in a.owned[path])
    ]
    if a.fsdp1:
        kept = {*kept_whole(a), *alone}
        return frozenset(path for path in left if path in kept and not is_whole(a, path))
    return frozenset(path for path in left if ways_left(a, path) != {"sharded"})


# Who changes parameters otherwise than by a step has them whole meanwhile, and fsdp1 writes back
# what it took for whole.
def _shows(op: Op) -> bool:
    """Whether it tells of whole parameters, or changes them."""
    changes = "param" in op.compared and not op.steps_optimizer
    return changes or op.runs_model or op.wraps or bool(op.results)


class SteppedWholeDimension(Hazard):
    """Whether units are whole while the optimizer steps, or gradients are clipped."""

    name = "stepped_whole"
    features: ClassVar[Mapping[str, Feature]] = {
        "stepped_whole": Feature(
            about="on when the optimizer steps while a unit is whole, as a forward without "
            "backward has left it",
            group="Training",
            # In one program of a hundred, which is known to fail: no pair is waited for.
            values=("off",),
            open=True,
        ),
        "clipped_whole": Feature(
            about="on when gradients are clipped while a unit that has some is whole, or sharded "
            "over fewer ranks, as a forward without backward has left it (fsdp2 only)",
            group="Training",
            values=("off",),
            open=True,
            apis=("fsdp2",),
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Of any unit: what one computes with goes on to the others."""
        yield "stepped_whole", on(bool(stepped_whole(a)))
        if not a.fsdp1:
            yield "clipped_whole", on(bool(clipped_whole(a)))
