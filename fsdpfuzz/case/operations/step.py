"""A step of the optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.operations.base import OperationBase, Progress, Word
from fsdpfuzz.case.optimizer import goes_through
from fsdpfuzz.case.recipe import OPTIMIZER, SCALER, Do, Statement, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.lowering import Lowering

STEPS_TAKEN = "step"
"""The entry of an optimizer's state that counts them, beside the tensors of a parameter."""


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
    steps_optimizer: ClassVar[bool] = True
    program_words: ClassVar[Mapping[str, Word]] = {
        "step": Word(about="optimizer.step()", means=lambda _: (Step(),), after_reduction=True)
    }
    compared: ClassVar[tuple[Literal["grad", "param"], ...]] = ("param",)

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """There has to be an optimizer."""
        if a.case.optimizer is None:
            raise CaseError("step without an optimizer", path=at)

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """The optimizer's own, or the scaler's, which may skip it."""
        if goes_through(lowering.a):
            scaled = lowering.a.case.grad_scaler is not None
            yield Do(call=call(".step", *((SCALER,) if scaled else ()), OPTIMIZER))

    def words(self) -> str:
        """Its name."""
        return "step"

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """How many there are."""
        yield "steps", str(sum(isinstance(op, Step) for op in a.case.program))
