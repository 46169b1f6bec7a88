"""A unit that is sharded again by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import ModulePath
from fsdpfuzz.case.dimension import Feature, one
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.operations.base import OperationBase, Progress
from fsdpfuzz.case.operations.forward import pending_before
from fsdpfuzz.case.recipe import Do, Statement, call
from fsdpfuzz.case.sides import unit_module
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.lowering import Lowering


class Reshard(OperationBase, tag="reshard", frozen=True, kw_only=True):
    """``reshard()`` of one unit (fsdp2), between any two operations."""

    features: ClassVar[Mapping[str, Feature]] = {
        "resharded": Feature(
            about="no, before backward (of what a forward has recorded), between (iterations), "
            "several: when a unit is sharded by hand (fsdp2 only)",
            group="Training",
            values=("no", "before backward", "between", "several"),
            apis=("fsdp2",),
        )
    }

    unit: ModulePath

    @property
    def reshards(self) -> str:
        """That unit."""
        return self.unit

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """A unit of fsdp2."""
        if a.fsdp1:
            raise CaseError("an operation of fsdp2 alone", path=at)
        check_names((self.unit,), a.options, f"{at}.unit", "unit")

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """The reference has nothing to free."""
        yield Do(call=call(".reshard", unit_module(lowering.a, self.unit)), who="fsdp")

    def words(self) -> str:
        """``reshard 0``."""
        return f"reshard {self.unit or 'root'}"

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """When, if at all."""
        if a.fsdp1:
            return
        program = a.case.program
        when = {
            "before backward" if pending else "between"
            for op, pending in zip(program, pending_before(program), strict=True)
            if isinstance(op, Reshard)
        }
        yield "resharded", one(when, several="several")
