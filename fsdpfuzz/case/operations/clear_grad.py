"""Gradients that the user drops, of some parameters only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
from msgspec import Meta

from fsdpfuzz.case.base import ParameterName
from fsdpfuzz.case.dimension import Feature, Simpler, one
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.operations.base import OperationBase, Progress
from fsdpfuzz.case.recipe import Call, Do, Statement, Variable, call, literal
from fsdpfuzz.case.units.use_orig_params import is_flat
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec


class ClearGrad(OperationBase, tag="clear_grad", frozen=True, kw_only=True):
    """``parameter.grad = None``, once gradients are reduced.

    A flat parameter has one gradient, so its parameters are named together or not at all.
    """

    features: ClassVar[Mapping[str, Feature]] = {
        "cleared": Feature(
            about="no, part (the gradients of some parameters of a unit are set to None), whole "
            "(of whole units), mixed",
            group="Training",
            values=("no", "part", "whole", "mixed"),
        )
    }
    needs_reduced: ClassVar[bool] = True
    drops_gradients: ClassVar[bool] = True

    parameters: Annotated[tuple[ParameterName, ...], Meta(min_length=1)]

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """Names of parameters, whose gradients are reduced, and never a part of a flat one."""
        check_names(self.parameters, a.by_fqn, f"{at}.parameters", "parameter")
        if progress.pending or not progress.reduced:
            raise CaseError("clear_grad where gradients are not reduced", path=at)
        check_flat_together(a, self.parameters, f"{at}.parameters")

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """On the tensors that the model showed when it was wrapped."""
        own = lowering.a.canonical_names(self.parameters)
        # FSDP's model shows other tensors while a unit is whole, whose gradients are not those
        # reduced.
        held = lowering.held_in(own)
        if own == held:
            yield Do(call=_dropped(own))
            return
        yield Do(call=_dropped(held), who="fsdp")
        yield Do(call=_dropped(own), who="reference")

    def words(self) -> str:
        """``clear the gradient of 0.weight``."""
        more = len(self.parameters) - 1
        return f"clear the gradient of {self.parameters[0]}" + (f" and {more} more" if more else "")

    def moves(self, now: Situation, a: Anatomy, rank: int) -> None:
        """Without these gradients."""
        now.graded.difference_update(a.canonical_names(self.parameters))

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether gradients stay in the same unit."""
        found: set[str] = set()
        for i, op in enumerate(a.case.program):
            if isinstance(op, ClearGrad):
                named = set(a.canonical_names(op.parameters))
                for parameters in a.at(i).managed.values():
                    chosen = sum(p.fqn in named for p in parameters)
                    if chosen:
                        found.add("whole" if chosen == len(parameters) else "part")
        yield "cleared", one(found)

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """Of one parameter less."""
        replace, ops = msgspec.structs.replace, case.program
        for i, op in enumerate(ops):
            names = op.parameters if isinstance(op, ClearGrad) else ()
            for name in names if len(names) > 1 else ():
                left = replace(op, parameters=tuple(n for n in names if n != name))
                yield Simpler(replace(case, program=(*ops[:i], left, *ops[i + 1 :])))


def check_flat_together(a: Anatomy, names: Sequence[str], at: str) -> None:
    """:class:`CaseError` where a flat parameter is named in part."""
    if (found := in_part(a, names)) is not None:
        raise CaseError(f"{found!r} lies in a flat parameter: name all of it", path=at)


def in_part(a: Anatomy, names: Sequence[str]) -> str | None:
    """One of the parameters that lies in a flat one with others that are not named."""
    named = set(a.canonical_names(names))
    for owner, parameters in a.managed.items():
        found = [p.fqn for p in parameters if p.fqn in named]
        if is_flat(a, owner) and found and len(found) < len(parameters):
            return found[0]
    return None


def _dropped(names: Sequence[str]) -> Call:
    return call("steps.clear_grad.drop", Variable("named"), literal(tuple(names)))
