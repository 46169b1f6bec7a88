"""The scale of gradients, which follows a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.operations.base import OperationBase, Progress
from fsdpfuzz.case.recipe import SCALER, Do, Statement, Variable, call

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.lowering import Lowering

SCALE = "scale"
"""The scale, and how many steps it has not changed for."""


class UpdateScale(OperationBase, tag="update_scale", frozen=True, kw_only=True):
    """``scaler.update()``: halves the scale if the step was skipped, doubles it now and then."""

    results: ClassVar[tuple[str, ...]] = (SCALE,)

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """It goes after a step; `fsdpfuzz.case.grad_scaler` sees to it."""

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """The scaler's own, and what it comes to."""
        yield Do(call=call(".update", SCALER))
        state = call("steps.grad_scaler.state", SCALER)
        yield Do(call=state, into=(Variable(SCALE),), looks=True)

    def words(self) -> str:
        """Its name."""
        return "update the scale"
