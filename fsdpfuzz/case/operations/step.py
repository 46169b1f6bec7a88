"""A step of the optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.operations.base import OperationBase, Progress
from fsdpfuzz.case.recipe import OPTIMIZER, Do, Statement, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.lowering import Lowering


class Step(OperationBase, tag="step", frozen=True, kw_only=True):
    """``optimizer.step()``."""

    features: ClassVar[Mapping[str, Feature]] = {
        "steps": Feature(
            about="number of optimizer steps",
            group="Training",
            values=("1", "2", "3"),
            open=True,
        )
    }
    needs_reduced: ClassVar[bool] = True
    moves_parameters: ClassVar[bool] = True
    compared: ClassVar[tuple[Literal["grad", "param"], ...]] = ("param",)

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """There has to be an optimizer."""
        if a.case.optimizer is None:
            raise CaseError("step without an optimizer", path=at)

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """The optimizer's own."""
        if lowering.has_optimizer:
            yield Do(call=call(".step", OPTIMIZER))

    def words(self) -> str:
        """Its name."""
        return "step"

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """How many there are."""
        yield "steps", str(sum(isinstance(op, Step) for op in a.case.program))
