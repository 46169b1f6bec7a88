"""Learning rates that change in the course of a training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
from msgspec import Meta

from fsdpfuzz.case.dimension import Feature, Simpler, one
from fsdpfuzz.case.operations.base import OperationBase, Progress
from fsdpfuzz.case.optimizer import MAX_RATE, goes_through
from fsdpfuzz.case.recipe import OPTIMIZER, Do, Statement, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec

USUAL = 0.5


class LearningRate(OperationBase, tag="learning_rate", frozen=True, kw_only=True):
    """``group["lr"] *= factor`` for each group of the optimizer, as a scheduler does.

    The optimizer is then no longer as it was made: what saves, loads or makes anew its state has to
    bring along the rate.
    """

    features: ClassVar[Mapping[str, Feature]] = {
        "learning_rate": Feature(
            about="fixed, lowered, raised, both: how the learning rate changes between steps",
            group="Training",
            values=("fixed", "lowered", "raised", "both"),
        )
    }

    factor: Annotated[float, Meta(gt=0.0, le=100.0)] = USUAL

    @property
    def scales_rate(self) -> float:
        """The factor."""
        return self.factor

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """The optimizer steps, and by no larger rate than it may be made with."""
        case = a.case
        if case.optimizer is None or not any(op.steps_optimizer for op in case.program):
            raise CaseError("a learning rate by which no optimizer steps", path=at)
        if self.factor == 1.0:
            raise CaseError("leave it out: 1 changes nothing", path=f"{at}.factor")
        rate = case.optimizer.lr
        for op in case.program:
            rate *= op.scales_rate
            if rate > MAX_RATE:
                words = f"the learning rate becomes {rate:g}, above {MAX_RATE:g}"
                raise CaseError(words, path=f"{at}.factor")

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """Of the optimizer that there is, if it has any parameters."""
        if goes_through(lowering.a):
            yield Do(call=call("steps.learning_rate.multiply", OPTIMIZER, self.factor))

    def words(self) -> str:
        """``learning rate times 0.5``."""
        return f"learning rate times {self.factor:g}"

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """In which direction."""
        factors = [op.factor for op in a.case.program if isinstance(op, LearningRate)]
        ways = ("lowered" if factor < 1.0 else "raised" for factor in factors)
        yield "learning_rate", one(ways, several="both") if factors else "fixed"

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """Halved."""
        replace, ops = msgspec.structs.replace, case.program
        for i, op in enumerate(ops):
            if isinstance(op, LearningRate) and op.factor != USUAL:
                halved = (*ops[:i], replace(op, factor=USUAL), *ops[i + 1 :])
                yield Simpler(replace(case, program=halved))
