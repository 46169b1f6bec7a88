"""Random numbers that a recomputation draws anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.keyword_input import named
from fsdpfuzz.case.paths import join, within

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


# ``get_device_states(*args)`` in torch/utils/checkpoint.py looks for a GPU whose generator's state
# is to be kept among positional arguments alone. That of the CPU is kept always; a reentrant
# wrapper packs keywords into positions.
def draws_anew(a: Anatomy) -> bool:
    """Whether a checkpoint recomputes random numbers of what is given tensors by keyword alone."""
    by_keyword = {
        join(p.path, p.node.named_alone()) for p in a.places if p.node and p.node.named_alone()
    }
    random = [p.path for p in a.places if p.node is not None and p.node.draws_random()]
    return any(
        c.recomputes
        and not c.reentrant
        and (c.path in by_keyword or named(a, c.path))
        and any(within(path, c.path) for path in random)
        for c in a.case.checkpoints
    )


class UnrestoredDimension(Hazard):
    """Whether random numbers are not those of the forward when they are recomputed on a GPU."""

    name = "unrestored"
    features: ClassVar[Mapping[str, Feature]] = {
        "unrestored": Feature(
            about="on when what a checkpoint recomputes draws random numbers and is given tensors "
            "by keyword alone, so that on a GPU it draws others",
            group="Training",
            # In few programs, which are known to fail on a GPU: no pair is waited for.
            values=("off",),
            open=True,
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Of any checkpoint."""
        yield "unrestored", on(draws_anew(a))
