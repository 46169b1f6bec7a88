"""Train mode and eval mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Feature, Simpler
from fsdpfuzz.case.operations.base import OperationBase, Progress
from fsdpfuzz.case.recipe import MODEL, Do, Statement, call

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec


class Mode(OperationBase, tag="mode", frozen=True, kw_only=True):
    """``model.train(...)``."""

    features: ClassVar[Mapping[str, Feature]] = {
        "eval": Feature(
            about="on when the model is in eval mode for a part of the program",
            group="Training",
            values=ON,
        )
    }

    train: bool

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """It goes anywhere."""

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """The module's own."""
        yield Do(call=call(".train" if self.train else ".eval", MODEL))

    def words(self) -> str:
        """``train mode``, ``eval mode``."""
        return "train mode" if self.train else "eval mode"

    def moves(self, now: Situation, a: Anatomy, rank: int) -> None:
        """Whether the model is in train mode."""
        now.training = self.train

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether there is any evaluation."""
        yield "eval", on(any(isinstance(op, Mode) and not op.train for op in a.case.program))

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """Always in train mode."""
        left = tuple(op for op in case.program if not isinstance(op, Mode))
        if left != case.program:
            changed = msgspec.structs.replace(case, program=left)
            yield Simpler(changed, "a switch between train and eval")
