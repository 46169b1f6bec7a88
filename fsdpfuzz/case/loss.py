"""What is minimised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from fsdpfuzz.case.dimension import Dimension, Feature, Simpler
from fsdpfuzz.case.modules.side_output import keeping
from fsdpfuzz.case.recipe import MODEL, Call, Do, Statement, Value, Variable, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.modules import Imported
    from fsdpfuzz.case.spec import CaseSpec

Loss = Literal["projection", "sum", "own"]


class LossDimension(Dimension):
    """A fixed random projection of the output, or its plain sum."""

    name = "loss"
    of_model: ClassVar[bool] = True
    features: ClassVar[Mapping[str, Feature]] = {
        "loss": Feature(about="projection, sum", group="Training", values=("projection", "sum"))
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """The loss by name."""
        yield "loss", a.case.loss

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """Any but the projection."""
        if case.loss == "sum":
            yield "loss", "sum of the output"
        elif case.loss == "own":
            yield "loss", "the model's own"

    def check(self, a: Anatomy) -> None:
        """A loss of its own goes with an imported model that has one, and there alone."""
        own = a.imported is not None and a.imported.loss != "all"
        if own != (a.case.loss == "own"):
            words = "'own' is the loss of an imported model that says what it minimises"
            raise CaseError(words, path="$.loss")

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """The projection, in place of a sum."""
        if case.loss == "sum":
            changed = msgspec.structs.replace(case, loss="projection")
            yield Simpler(changed, "output.sum() as the loss")


def forgotten(a: Anatomy) -> Iterator[Statement]:
    """Before a forward: nothing is kept for the loss that an earlier one left behind."""
    if keeping(a):
        yield Do(call=call("steps.modules.side_output.forget", MODEL))


def loss_into(a: Anatomy, loss: Variable) -> Iterator[Statement]:
    """Puts the loss of ``output`` into a variable, with what modules have kept for it."""
    yield Do(call=_of_output(a), into=(loss,))
    if keeping(a):
        both = call("steps.modules.side_output.with_kept", loss, MODEL)
        yield Do(call=both, into=(loss,))


def _of_output(a: Anatomy) -> Value:
    output = Variable("output")
    match a.case.loss:
        case "sum":
            return call(".sum", output)
        case "own":
            return output  # the loss is all that was put out
        case "projection":
            pass
    return call("steps.loss.projection", output, a.case.seed)


def output_of(own: Imported, model: Value, batch: Value) -> Call:
    """A call of an imported model: the loss that it has of its own, or all that it returns."""
    match own.loss:
        case "function":
            return call(own.function("loss"), model, batch)
        case "attribute":
            return call("steps.modules.imported.loss_in", model, batch)
        case "all":
            return call("steps.modules.imported.returned", model, batch)
