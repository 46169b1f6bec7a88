"""What all hazards have in common: they follow from the rest of a case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.dimension import Dimension, Simpler
from fsdpfuzz.errors import ContractError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec


class Hazard(Dimension):
    """A structure where FSDP's rules for units are easily broken."""

    drawn: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.features and cls.values is Hazard.values:
            raise ContractError(f"{cls.__name__} has features without values")

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """It is told of single units or parameters alone."""
        return iter(())

    def check(self, a: Anatomy) -> None:
        """It is a sound case."""

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """What makes it so is simplified where it is."""
        return iter(())
