"""``set_modules_to_backward_prefetch`` of fsdp2."""

from __future__ import annotations

from typing import ClassVar

from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.units.prefetch_list import PrefetchList, feature


class PrefetchedInBackward(PrefetchList):
    """The units that a unit gathers early in backward, in place of the one before it."""

    name = "prefetched_in_backward"
    method: ClassVar[str] = "set_modules_to_backward_prefetch"
    feature: ClassVar[Feature] = feature(name)
