"""Gradients that are unscaled before a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from fsdpfuzz.case.operations.base import OperationBase, Progress
from fsdpfuzz.case.recipe import OPTIMIZER, SCALER, Do, Statement, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.lowering import Lowering


class Unscale(OperationBase, tag="unscale", frozen=True, kw_only=True):
    """``scaler.unscale_(optimizer)``, as before gradients are clipped."""

    needs_reduced: ClassVar[bool] = True
    asks_optimizer: ClassVar[bool] = True
    compared: ClassVar[tuple[Literal["grad", "param"], ...]] = ("grad",)

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """All gradients are reduced; the rest `fsdpfuzz.case.grad_scaler` sees to."""
        if progress.pending or not progress.reduced:
            raise CaseError("unscale where gradients are not reduced", path=at)

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """The scaler's own."""
        yield Do(call=call(".unscale_", SCALER, OPTIMIZER))

    def words(self) -> str:
        """Its name."""
        return "unscale"
