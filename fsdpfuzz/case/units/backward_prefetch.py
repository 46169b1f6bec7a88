"""``backward_prefetch`` of ``FullyShardedDataParallel``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.recipe import Global, Value
from fsdpfuzz.case.units.base import Option

if TYPE_CHECKING:
    from fsdpfuzz.case.units.configured import Configuration
    from fsdpfuzz.case.wrap import Unit

_CONFIGURED = {
    "BACKWARD_PRE": "BACKWARD_PRE",
    "BACKWARD_POST": "BACKWARD_POST",
    "NO_PREFETCH": None,
}
"""By accelerate's names."""


class BackwardPrefetch(Option):
    """When the next unit's parameters are gathered in backward."""

    name = "backward_prefetch"
    configured_by: ClassVar[tuple[str, ...]] = ("fsdp_backward_prefetch",)
    feature: ClassVar[Feature] = Feature(
        about="BACKWARD_PRE, BACKWARD_POST, off, mixed (fsdp1 only)",
        group="Sharding",
        values=("BACKWARD_PRE", "BACKWARD_POST", "off", "mixed"),
        apis=("fsdp1",),
    )

    def configured(self, kind: type[Unit], config: Configuration) -> Any:
        """Off, unless it says otherwise: unlike PyTorch."""
        return config.one_of(self.configured_by[0], _CONFIGURED, "NO_PREFETCH")

    def text(self, value: Any) -> str:
        """The name, or ``off``."""
        return str(value) if value else "off"

    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """``backward_prefetch``."""
        named = Global(f"torch.distributed.fsdp.BackwardPrefetch.{value}") if value else None
        yield "backward_prefetch", named

    def words(self, value: Any) -> str:
        """The name."""
        return str(value) if value else "backward_prefetch=None"
