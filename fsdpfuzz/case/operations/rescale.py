"""Parameters that the user scales between iterations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
from msgspec import Meta

from fsdpfuzz.case.base import ParameterName
from fsdpfuzz.case.dimension import Feature, Simpler
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.operations.base import OperationBase, Progress
from fsdpfuzz.case.operations.clear_grad import check_flat_together
from fsdpfuzz.case.recipe import Do, Statement, Variable, call, literal
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec


class Rescale(OperationBase, tag="rescale", frozen=True, kw_only=True):
    """``parameter.mul_(0.75)`` without grad, on the local shards, as a weight constraint does.

    With ``new_data`` they become new tensors, ``parameter.data = parameter.data * 0.75``, which
    fsdp1 writes back to its flat parameter (``use_orig_params``).
    """

    features: ClassVar[Mapping[str, Feature]] = {
        "rescaled": Feature(
            about="no, in place, new data (the data of some is set; fsdp1 with original "
            "parameters only): how the user changes parameters between iterations",
            group="Training",
            values=("no", "in place", "new data"),
            excludes={"new data": {"api": ("fsdp2",)}},
        )
    }
    needs_reduced: ClassVar[bool] = True

    parameters: Annotated[tuple[ParameterName, ...], Meta(min_length=1)]
    new_data: bool = False

    @property
    def sets_data(self) -> bool:
        """With ``new_data``."""
        return self.new_data

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """Of what is trained, while it is sharded."""
        check_names(self.parameters, a.by_fqn, f"{at}.parameters", "parameter")
        if progress.pending or not progress.reduced or progress.left:
            raise CaseError("rescale while units may be whole", path=at)
        check_trained(a, self.parameters, f"{at}.parameters")
        check_flat_together(a, self.parameters, f"{at}.parameters")
        owners = {a.owners[fqn] for fqn in a.canonical_names(self.parameters)}
        kept = [o for o in owners if o is not None and a.fsdp1 and not a.options[o].flat]
        if self.new_data and len(kept) < len(owners):
            raise CaseError(
                "only fsdp1 writes back what a parameter's data is set to, of original parameters",
                path=f"{at}.new_data",
            )

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """On what the optimizer trains."""
        own = lowering.a.canonical_names(self.parameters)
        held = lowering.held_in(own)
        how = "steps.rescale.replace" if self.new_data else "steps.rescale.scale"
        named = Variable("named")
        if own == held:
            yield Do(call=call(how, named, literal(own)))
            return
        yield Do(call=call(how, named, literal(held)), who="fsdp")
        yield Do(call=call(how, named, literal(own)), who="reference")

    def words(self) -> str:
        """``rescale 0.weight``."""
        more = len(self.parameters) - 1
        words = [f"rescale {self.parameters[0]}"]
        words += [f"and {more} more"] if more else []
        words += ["into new data"] if self.new_data else []
        return " ".join(words)

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """In which way."""
        found = [op.new_data for op in a.case.program if isinstance(op, Rescale)]
        yield "rescaled", "new data" if any(found) else "in place" if found else "no"

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """In place; of one parameter less."""
        replace, ops = msgspec.structs.replace, case.program

        def having(i: int, op: Rescale) -> CaseSpec:
            return replace(case, program=(*ops[:i], op, *ops[i + 1 :]))

        for i, op in enumerate(ops):
            if not isinstance(op, Rescale):
                continue
            if op.new_data:
                yield Simpler(having(i, replace(op, new_data=False)), "parameters of new data")
            for name in op.parameters if len(op.parameters) > 1 else ():
                left = tuple(n for n in op.parameters if n != name)
                yield Simpler(having(i, replace(op, parameters=left)))


def check_trained(a: Anatomy, names: Sequence[str], at: str) -> None:
    """:class:`CaseError` where something frozen is changed.

    `frozen_untouched` holds a frozen parameter to its first value.
    """
    if a.frozen.intersection(names):
        raise CaseError("what is frozen stays as it is", path=at)
