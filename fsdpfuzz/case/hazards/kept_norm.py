"""Clipping on a rank that has no gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.units.use_orig_params import held_on

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation


class KeptNormDimension(Hazard):
    """Norms of nothing, which fsdp1 has one tensor for."""

    name = "kept_norm"
    features: ClassVar[Mapping[str, Feature]] = {
        "kept_norm": Feature(
            about="on when fsdp1 clips by the maximum where a rank may have no element of a "
            "gradient, and once more where it may have none (fsdp1 only)",
            group="Training",
            # In few programs, which are known to fail: no pair is waited for.
            values=("off",),
            open=True,
            apis=("fsdp1",),
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Of any rank."""
        if a.fsdp1:
            yield "kept_norm", on(any(_keeps_norm(a, rank) for rank in range(a.case.world_size)))


# ``_get_grad_norm`` in fsdp/fully_sharded_data_parallel.py returns ``_zero_scalar`` then, and the
# maximum is reduced in place.
def _keeps_norm(a: Anatomy, rank: int) -> bool:
    kept = False
    for i, op, now in a.situations(rank):
        if op.renews:
            kept = False
        elif op.clips_by is not None and _may_lack_all(a.at(i), now, rank):
            if kept:
                return True
            kept = op.clips_by == "inf"
    return False


def _may_lack_all(a: Anatomy, now: Situation, rank: int) -> bool:
    """Whether a rank may have no element of a gradient: a forward may leave out some modules."""
    held = held_on(a, rank)
    sure = (n for n in now.graded if not any(within(n, path) for path in a.optional))
    return not any(held.get(name) for name in sure)
