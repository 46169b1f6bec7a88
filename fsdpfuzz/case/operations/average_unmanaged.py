"""Gradients of what no unit manages, which the user averages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from fsdpfuzz.case.averaging import average
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.operations.base import OperationBase, Progress
from fsdpfuzz.case.recipe import Statement, Variable, call, literal
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.lowering import Lowering


class AverageUnmanaged(OperationBase, tag="average_unmanaged", frozen=True, kw_only=True):
    """``all_reduce`` of the gradients of all parameters that FSDP ignores.

    FSDP does not: ``fully_shard`` documents of ``ignored_params`` that "their gradients will not
    be reduced in backward", and ``ignored_modules`` of fsdp1 are none of its flat parameters. Where
    the user does not either, each rank trains such a parameter on its own batches.
    """

    features: ClassVar[Mapping[str, Feature]] = {
        "unmanaged": Feature(
            about="none, apart (each rank trains what no unit manages by itself), averaged (the "
            "user averages its gradients), idle (it is not trained)",
            group="Wrapping",
            values=("none", "apart", "averaged", "idle"),
            excludes={"none": {"ignored_parameters": ("on",)}},
        )
    }
    needs_reduced: ClassVar[bool] = True
    compared: ClassVar[tuple[Literal["grad", "param"], ...]] = ("grad",)

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """Something is unmanaged and has gradients, and no micro-batch waits for its reduction."""
        if progress.pending or not progress.reduced:
            raise CaseError("average_unmanaged where gradients are not reduced", path=at)
        if progress.cleared:
            raise CaseError("average_unmanaged where there are no gradients", path=at)
        if not unmanaged(a):
            raise CaseError("average_unmanaged where units manage every parameter", path=at)
        progress.own = False

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """As the plain model does it with all others."""
        names = literal(unmanaged(lowering.a))
        yield average(lowering.a, call("steps.names.those", Variable("named"), names))

    def words(self) -> str:
        """What it does."""
        return "average the gradients of what no unit manages"

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Who looks after what no unit manages."""
        yield "unmanaged", _said(a)


def unmanaged(a: Anatomy) -> tuple[str, ...]:
    """The parameters that no unit manages, by the names that the reference has for them."""
    return tuple(p.fqn for p in a.managed.get(None, ()))


def differs_by_rank(a: Anatomy, progress: Progress) -> bool:
    """Whether what no unit manages may be another on each rank."""
    return progress.apart and bool(unmanaged(a))


def noted(a: Anatomy, op: OperationBase, progress: Progress) -> None:
    """Takes down whether ranks go apart with what no unit manages."""
    if op.gives_gradients:
        progress.own = True
    # A gradient alone parts nobody: values differ from the first step on that nobody averaged for.
    elif op.steps_optimizer and progress.own and trains_unmanaged(a):
        progress.apart = True


def trains_unmanaged(a: Anatomy) -> bool:
    """Whether any parameter that no unit manages is trained somewhere in the program."""
    names = unmanaged(a)
    # Few cases have any: the program of all others is not followed.
    return bool(names) and any(now.trained[n] for _, _, now in a.situations(0) for n in names)


def _said(a: Anatomy) -> str:
    if not unmanaged(a):
        return "none"
    progress = Progress()
    for op in a.case.program:
        if isinstance(op, AverageUnmanaged):
            progress.own = False
        noted(a, op, progress)
    if not trains_unmanaged(a) or not any(op.steps_optimizer for op in a.case.program):
        return "idle"
    return "apart" if progress.apart else "averaged"
