"""``set_reshard_after_forward`` of fsdp2, in the midst of a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import Dimension, Feature, Simpler, one
from fsdpfuzz.case.operations.set_reshard import SetReshard
from fsdpfuzz.case.units.reshard_after_forward import METHOD

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec


class ReshardSetDimension(Dimension):
    """Whether the program changes how forwards leave units, which not every torch can."""

    name = "reshard_set"
    newer: ClassVar[tuple[str, ...]] = (f"FSDPModule.{METHOD}()",)
    features: ClassVar[Mapping[str, Feature]] = {
        "reshard_set": Feature(
            about="no, on, off, both: what the program sets reshard_after_forward to (fsdp2 only)",
            group="Sharding",
            values=("no", "on", "off", "both"),
            apis=("fsdp2",),
        )
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """To what, if at all."""
        if not a.fsdp1:
            values = (on(op.reshard) for op in a.case.program if isinstance(op, SetReshard))
            yield "reshard_set", one(values, several="both")

    def asked(self, a: Anatomy) -> bool:
        """Where it does."""
        return any(op.changes_units for op in a.case.program)

    def check(self, a: Anatomy) -> None:
        """The operation sees to it."""

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """Without any."""
        left = tuple(op for op in case.program if not op.changes_units)
        if left and left != case.program:
            yield Simpler(msgspec.structs.replace(case, program=left), METHOD)
