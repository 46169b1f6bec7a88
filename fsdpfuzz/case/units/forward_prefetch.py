"""``forward_prefetch`` of ``FullyShardedDataParallel``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.recipe import Value
from fsdpfuzz.case.units.base import Option
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.units.configured import Configuration
    from fsdpfuzz.case.wrap import Unit


class ForwardPrefetch(Option):
    """Whether the next unit's parameters are gathered early in forward."""

    name = "forward_prefetch"
    configured_by: ClassVar[tuple[str, ...]] = ("fsdp_forward_prefetch",)
    feature: ClassVar[Feature] = Feature(
        about="on, off, mixed (fsdp1 only)",
        group="Sharding",
        values=("off", "on", "mixed"),
        apis=("fsdp1",),
    )

    def configured(self, kind: type[Unit], config: Configuration) -> Any:
        """Off, unless it says otherwise."""
        return config.flag(self.configured_by[0], default=False)

    def check_unit(self, a: Anatomy, unit: Unit, at: str) -> None:
        """ "This should only be used for static-graph models" (``FullyShardedDataParallel``)."""
        if a.numbered and getattr(unit, self.name, False):
            raise CaseError("forwards that leave out modules are no static graph", path=at)

    def text(self, value: Any) -> str:
        """``on`` or ``off``."""
        return on(value)

    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """``forward_prefetch``."""
        yield "forward_prefetch", value
