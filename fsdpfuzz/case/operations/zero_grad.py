"""Clearing of gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.dimension import Feature, Simpler, one
from fsdpfuzz.case.operations.base import OperationBase, Progress, Word
from fsdpfuzz.case.optimizer import goes_through
from fsdpfuzz.case.recipe import MODEL, OPTIMIZER, Do, Statement, Value, call

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec


class ZeroGrad(OperationBase, tag="zero_grad", frozen=True, kw_only=True):
    """``optimizer.zero_grad(set_to_none=...)``; the model's where there is no optimizer."""

    features: ClassVar[Mapping[str, Feature]] = {
        "zero_grad": Feature(
            about="none (set_to_none), zero, mixed, never",
            group="Training",
            values=("none", "zero", "mixed", "never"),
        )
    }
    program_words: ClassVar[Mapping[str, Word]] = {
        "zero_grad": Word(
            about="optimizer.zero_grad()",
            means=lambda _: (ZeroGrad(),),
            after_reduction=True,
        )
    }

    clears_gradients: ClassVar[bool] = True

    set_to_none: bool = True

    @property
    def frees_gradients(self) -> bool:
        """With ``set_to_none``."""
        return self.set_to_none

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """It goes anywhere."""
        progress.cleared = progress.cleared or self.set_to_none

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """As a user does: on the optimizer if there is one."""
        owner = OPTIMIZER if goes_through(lowering.a) else MODEL
        options: dict[str, Value] = {} if self.set_to_none else {"set_to_none": False}
        yield Do(call=call(".zero_grad", owner, **options))
        lowering.reduced = False

    def words(self) -> str:
        """``zero_grad``, ``zero_grad to 0``."""
        return "zero_grad" if self.set_to_none else "zero_grad to 0"

    def moves(self, now: Situation, a: Anatomy, rank: int) -> None:
        """Without gradients, but for what the optimizer does not hold."""
        if self.set_to_none:
            out = a.canonical_names(a.case.held_out) if a.case.optimizer is not None else ()
            # ``optimizer.zero_grad`` reaches its own parameters alone, ``model.zero_grad`` all of
            # them.
            now.graded.intersection_update(out)

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """In which way, over the program."""
        ways = ("none" if op.set_to_none else "zero" for op in _all(a.case))
        yield "zero_grad", one(ways, none="never")

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """By dropping the gradients."""
        if any(not op.set_to_none for op in _all(case)):
            program = tuple(ZeroGrad() if isinstance(op, ZeroGrad) else op for op in case.program)
            changed = msgspec.structs.replace(case, program=program)
            yield Simpler(changed, "zero_grad(set_to_none=False)")


def _all(case: CaseSpec) -> list[ZeroGrad]:
    return [op for op in case.program if isinstance(op, ZeroGrad)]
