"""``limit_all_gathers`` of ``FullyShardedDataParallel``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.recipe import Value
from fsdpfuzz.case.units.base import Option

if TYPE_CHECKING:
    from fsdpfuzz.case.wrap import Unit


class LimitAllGathers(Option):
    """Whether the CPU waits so that few all-gathers are under way at once."""

    name = "limit_all_gathers"
    # ``HOMOGENEOUS_ATTR_NAMES`` in fsdp/_runtime_utils.py: the root refuses units that differ in
    # it.
    by_policy: ClassVar[bool] = False
    feature: ClassVar[Feature] = Feature(
        about="on, off, mixed (fsdp1 only)",
        group="Sharding",
        values=("on", "off", "mixed"),
        apis=("fsdp1",),
    )

    def text(self, value: Any) -> str:
        """``on`` or ``off``."""
        return on(value)

    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """``limit_all_gathers``."""
        yield "limit_all_gathers", value
