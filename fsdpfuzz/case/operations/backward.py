"""Backward of all losses that wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Feature, Simpler
from fsdpfuzz.case.lacking import may_lack_backward
from fsdpfuzz.case.operations.base import OperationBase, Progress, Word
from fsdpfuzz.case.operations.forward import Forward, keeps_losses
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.recipe import SCALER, Do, Statement, Variable, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec


class Backward(OperationBase, tag="backward", frozen=True, kw_only=True):
    """Backward of all pending losses."""

    gives_gradients: ClassVar[bool] = True
    features: ClassVar[Mapping[str, Feature]] = {
        "retained_graph": Feature(
            about="on when a backward goes back through its graph a second time",
            group="Training",
            values=ON,
            excludes={"on": {"accumulation": ("off",)}},
        )
    }
    program_words: ClassVar[Mapping[str, Word]] = {
        "forward_backward": Word(
            about="loss and backward on the next batch; gradients are reduced",
            means=lambda _: (Forward(), Backward()),
            trains=True,
            unreduced=False,
        ),
        "accumulate": Word(
            about="the same, but gradients are left unreduced for the next forward_backward",
            means=lambda _: (Forward(sync=False), Backward()),
            trains=True,
            unreduced=True,
        ),
    }

    again: bool = False
    """Runs twice: with ``retain_graph=True``, and once more over the graph that is left."""

    @property
    def goes_back_twice(self) -> bool:
        """Where that is asked for."""
        return self.again

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """A forward has to wait for it."""
        if not progress.pending:
            raise CaseError("backward without a pending forward", path=at)
        if self.again and a.case.finalization != "automatic":
            raise CaseError("each backward is finished before the next", path=f"{at}.again")
        progress.reduced = all(progress.pending)
        progress.pending.clear()
        progress.cleared = False

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """The sum of the losses, its backward, and what stands for FSDP in the plain model."""
        loss = Variable("loss")
        if keeps_losses(lowering.a.case):
            pending = Variable("pending")
            yield Do(call=call("steps.backward.total", pending), into=(loss,))
            yield Do(call=call(".clear", pending))
        yield from lowering.before_backward()
        if lowering.a.case.grad_scaler is not None:
            scaled = Variable("scaled_loss")
            yield Do(call=call(".scale", SCALER, loss), into=(scaled,))
            loss = scaled
        function = ".backward"
        if may_lack_backward(lowering.a):
            function = "steps.backward.if_required"
        if self.again:
            yield Do(call=call(function, loss, retain_graph=True))
        yield Do(call=call(function, loss))
        yield from lowering.after_backward()

    def words(self) -> str:
        """``backward twice``."""
        return "backward twice" if self.again else "backward"

    def moves(self, now: Situation, a: Anatomy, rank: int) -> None:
        """What is trained may have a gradient, but for what its forwards left out."""
        given = {p.fqn for p in a.distinct if now.trained[p.fqn]}
        if a.numbered:
            read = given & now.read
            # One flat parameter has the gradients of all that lies in it.
            units = {now.owners[name] for name in read} - {None} if a.fsdp1 else set()
            given = {name for name in given if name in read or now.owners[name] in units}
        now.zeros = frozenset(_zeros(a, now) - given)
        now.given = frozenset(given)
        now.graded |= given | now.zeros
        now.read.clear()

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether any goes back twice."""
        yield "retained_graph", on(any(op.goes_back_twice for op in a.case.program))

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """Once; without the forwards and backwards that only accumulate."""
        if any(op.goes_back_twice for op in case.program):
            once = tuple(Backward() if op.goes_back_twice else op for op in case.program)
            yield Simpler(msgspec.structs.replace(case, program=once), "retain_graph")
        single = _one_each(case)
        if single != case.program:
            changed = msgspec.structs.replace(case, program=single)
            yield Simpler(changed, "gradient accumulation")


def _one_each(case: CaseSpec) -> tuple[object, ...]:
    kept: list[object] = []
    for op in case.program:
        before = [k.kind() for k in kept[-3:] if isinstance(k, OperationBase)]
        if isinstance(op, Backward) and before[:2] == ["forward", "backward"]:
            # The earlier pair goes and the later stays: the steps behind it were taken with its
            # gradients.
            kept = [*kept[:-3], kept[-1]]
        kept.append(op)
    return tuple(kept)


# ``FlatParamHandle._use_unsharded_views`` in fsdp/_flat_param.py shows a frozen parameter as a view
# of the flat one, too, which then gets a gradient.
def _zeros(a: Anatomy, now: Situation) -> set[str]:
    """What is trained beside frozen parameters that the forwards have read, in units of fsdp1."""
    if not a.fsdp1 or not a.numbered or a.switches:
        return set()
    cut = a.cut_off
    frozen = {n for n in now.read if not now.trained[n] and not any(within(n, p) for p in cut)}
    units = {now.owners[name] for name in frozen} - {None}
    return {p.fqn for p in a.distinct if now.trained[p.fqn] and now.owners[p.fqn] in units}
