"""``torch.distributed``'s debug level, by which fsdp1 checks the order of execution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from fsdpfuzz.case.dimension import Dimension, Feature, Simpler

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

DebugLevel = Literal["OFF", "INFO", "DETAIL"]


# fsdp1 reads the level once for each unit, while it makes it (``_ExecOrderData.__init__`` in
# fsdp/_exec_order_utils.py): raised later it checks nothing, so a case has one for its program.
class DebugLevelDimension(Dimension):
    """``torch.distributed.set_debug_level``."""

    name = "debug_level"
    features: ClassVar[Mapping[str, Feature]] = {
        "debug_level": Feature(
            about="OFF, INFO, DETAIL", group="Training", values=("OFF", "INFO", "DETAIL")
        )
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """The level."""
        yield "debug_level", a.case.debug_level

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """Any but OFF."""
        if case.debug_level != "OFF":
            yield "debug", case.debug_level

    def check(self, a: Anatomy) -> None:
        """Any level goes with any case."""

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """OFF."""
        if case.debug_level != "OFF":
            changed = msgspec.structs.replace(case, debug_level="OFF")
            yield Simpler(changed, f"debug level {case.debug_level}")
