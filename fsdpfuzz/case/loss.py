"""What is minimised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from fsdpfuzz.case.dimension import Dimension, Feature, Simpler
from fsdpfuzz.case.recipe import Call, Variable, call

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

Loss = Literal["projection", "sum"]


class LossDimension(Dimension):
    """A fixed random projection of the output, or its plain sum."""

    name = "loss"
    features: ClassVar[Mapping[str, Feature]] = {
        "loss": Feature(about="projection, sum", group="Training", values=("projection", "sum"))
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """The loss by name."""
        yield "loss", a.case.loss

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """Any but the projection."""
        if case.loss != "projection":
            yield "loss", f"{case.loss} of the output"

    def check(self, a: Anatomy) -> None:
        """Any loss goes with any case."""

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """The projection."""
        if case.loss != "projection":
            changed = msgspec.structs.replace(case, loss="projection")
            yield Simpler(changed, "output.sum() as the loss")


def loss_of(a: Anatomy) -> Call:
    """The loss of ``output``."""
    output = Variable("output")
    if a.case.loss == "sum":
        return call(".sum", output)
    return call("steps.loss.projection", output, a.case.seed)
