"""``set_modules_to_forward_prefetch`` of fsdp2."""

from __future__ import annotations

from typing import ClassVar

from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.units.prefetch_list import PrefetchList, feature


class PrefetchedInForward(PrefetchList):
    """The units that a unit gathers early in forward."""

    name = "prefetched_in_forward"
    method: ClassVar[str] = "set_modules_to_forward_prefetch"
    feature: ClassVar[Feature] = feature(name)
