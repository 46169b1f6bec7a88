"""What all hazards have in common: they follow from the rest of a case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.dimension import Dimension, Simpler

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec


class Hazard(Dimension):
    """A structure where FSDP's rules for units are easily broken."""

    drawn: ClassVar[bool] = False

    def check(self, a: Anatomy) -> None:
        """It is a sound case."""

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """What makes it so is simplified where it is."""
        return iter(())
