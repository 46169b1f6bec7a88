"""A gradient that is no longer finite, on the rank that has it."""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import ParameterName
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.operations.base import OperationBase, Progress
from fsdpfuzz.case.operations.forward import calls_below_the_root
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.recipe import Do, Statement, Variable, call
from fsdpfuzz.case.stepped import surely_graded
from fsdpfuzz.case.tensor_parallel import cut_dims
from fsdpfuzz.case.units.replicas import is_replica
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec


class Overflow(OperationBase, tag="overflow", frozen=True, kw_only=True):
    """``parameter.grad *= inf``, once gradients are reduced: as a reduction may overflow.

    Of what is sharded on the first rank alone, or with fsdp1's original parameters where the
    parameter lies. All ranks have to skip the step, or none.
    """

    needs_reduced: ClassVar[bool] = True

    parameter: ParameterName

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """Of one that has a gradient; the rest `check_overflows` sees to."""
        check_names((self.parameter,), a.by_fqn, f"{at}.parameter", "parameter")
        if not a.by_fqn[self.parameter].numel:
            raise CaseError("a gradient without elements is always finite", path=f"{at}.parameter")
        if progress.pending or not progress.reduced:
            raise CaseError("overflow where gradients are not reduced", path=at)

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """On the tensor that the model showed when it was wrapped."""
        a, named = lowering.a, Variable("named")
        own = a.canonical(self.parameter)
        whole = call("steps.grad_scaler.overflow", named, own)
        (held,) = lowering.held_in((own,))
        if not a.fsdp1:
            yield Do(call=call("steps.grad_scaler.overflow_first", named, held), who="fsdp")
        else:
            # A flat parameter has elements on the first rank, another one on some rank.
            how, ranks = ("overflow", (0,)) if held != own else ("overflow_here", None)
            here = call(f"steps.grad_scaler.{how}", named, held)
            yield Do(call=here, who="fsdp", ranks=ranks)
        yield Do(call=whole, who="reference")

    def words(self) -> str:
        """``overflow of the gradient of 0.weight``."""
        return f"overflow of the gradient of {self.parameter}"


@lru_cache(maxsize=64)
def overflown(case: CaseSpec) -> frozenset[int]:
    """Operations after which some gradients are not finite."""
    found, beyond = set(), False
    for i, op in enumerate(case.program):
        beyond = isinstance(op, Overflow) or (beyond and not op.clears_gradients)
        if beyond:
            found.add(i)
    return frozenset(found)


@lru_cache(maxsize=64)
def incomparable(case: CaseSpec) -> frozenset[int]:
    """Those of them that leave or give nothing but what comes of these gradients."""
    program = case.program
    return frozenset(i for i in overflown(case) if "grad" in program[i].compared)


def overflow_apart(a: Anatomy) -> bool:
    """Whether the first gradient is not sharded over all ranks over which that one is (fsdp2)."""
    if a.fsdp1:
        return False
    for i, op, situation, graded in surely_graded(a):
        if isinstance(op, Overflow):
            now = a.at(i)
            over = _sharded_over(now, a.canonical(op.parameter))
            held_out = a.canonical_names(a.case.held_out)
            firsts = _firsts(now, situation.graded.difference(held_out), stepped(a, graded))
            if any(not over <= _sharded_over(now, first) for first in firsts):
                return True
    return False


def _firsts(a: Anatomy, maybe: Set[str], surely: Set[str]) -> Iterator[str]:
    """Parameters that may be the first with a gradient, up to the first that surely has one."""
    for p in a.distinct:
        if p.used and p.fqn in maybe:
            yield p.fqn
        if p.fqn in surely:
            return


def _sharded_over(a: Anatomy, name: str) -> set[str]:
    """The axes over which the gradient of a parameter that a unit of fsdp2 manages is sharded."""
    owner = a.owners[name]
    axes = {"tensor parallel"} if cut_dims(a).get(name) is not None else set()
    return axes if owner is None or is_replica(a.options[owner]) else {*axes, "data parallel"}


def check_overflows(a: Anatomy) -> None:
    """:class:`CaseError` where more comes of it than a step that is skipped."""
    program = a.case.program
    for i, op, _, graded in surely_graded(a):
        if not isinstance(op, Overflow):
            continue
        at = f"$.program[{i}]"
        name = a.canonical(op.parameter)
        if name not in stepped(a, graded) or calls_below_the_root(program):
            raise CaseError("nobody knows that the optimizer has that gradient", path=at)
        if a.at(i).owners[name] is None:
            raise CaseError("each rank would look for itself at what no unit manages", path=at)
        _check_what_follows(program[i + 1 :], at)
        if any(op.saves_optimizer or op.names_state() or op.stores for op in program[i:]):
            # What has state hangs on the steps that are taken.
            raise CaseError("an overflow before the optimizer is saved", path=at)


def _check_what_follows(program: tuple[OperationBase, ...], at: str) -> None:
    stepped = False
    for op in program:
        if op.clears_gradients:
            break
        stepped |= op.steps_optimizer
        if op.steps_optimizer or op.kind() == "update_scale" or op.scales_rate != 1.0:
            continue
        if "grad" not in op.compared or stepped or op.may_refuse(_NON_FINITE):
            words = f"{op.kind()} while gradients are not finite"
            raise CaseError(words, path=at)
    if not stepped:
        raise CaseError("an overflow that no step meets", path=at)


_NON_FINITE = "The total norm is non-finite, so it cannot be clipped"


def stepped(a: Anatomy, graded: Set[str]) -> Set[str]:
    """Parameters of which the optimizer has a gradient, in the plain model as well.

    One that is not used has one beside others in a flat parameter alone.
    """
    used = {
        p.fqn
        for p in a.distinct
        if p.used and not any(within(p.fqn, path) for path in (*a.optional, *a.cut_off))
    }
    return (graded & used) - set(a.canonical_names(a.case.held_out))
