"""Backward of all losses that wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.dimension import Feature, Simpler
from fsdpfuzz.case.lacking import may_lack_backward
from fsdpfuzz.case.operations.base import OperationBase, Progress, Word
from fsdpfuzz.case.operations.forward import Forward, keeps_losses
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.recipe import SCALER, Do, Statement, Variable, call, literal
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec


class Backward(OperationBase, tag="backward", frozen=True, kw_only=True):
    """Backward of all pending losses: of their sum, or of each."""

    gives_gradients: ClassVar[bool] = True
    features: ClassVar[Mapping[str, Feature]] = {
        "second_backward": Feature(
            about="what follows a backward at once: off (nothing), graph (another one through the "
            "same graph), losses (that of the next loss that waits)",
            group="Training",
            values=("off", "graph", "losses"),
            excludes={
                "graph": {"accumulation": ("off",)},
                "losses": {"accumulation": ("off",), "pending": ("1",)},
            },
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

    each: bool = False
    """Runs once for each loss that waits, in the order of the forwards."""

    @property
    def goes_back_again(self) -> bool:
        """Where that is asked for."""
        return self.again or self.each

    @property
    def parts_losses(self) -> bool:
        """Where that is asked for."""
        return self.each

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """A forward has to wait for it."""
        if not progress.pending:
            raise CaseError("backward without a pending forward", path=at)
        if self.each and self.again:
            raise CaseError("each loss goes back once", path=f"{at}.again")
        if self.each and len(progress.pending) == 1:
            raise CaseError("one loss alone waits", path=f"{at}.each")
        if self.goes_back_again and a.case.finalization != "automatic":
            where = "again" if self.again else "each"
            raise CaseError("each backward is finished before the next", path=f"{at}.{where}")
        progress.reduced = all(progress.pending)
        progress.pending.clear()
        progress.cleared = False

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """Backward, and what stands for FSDP in the plain model."""
        loss, pending = Variable("loss"), Variable("pending")
        scaled = lowering.a.case.grad_scaler is not None
        sure = not may_lack_backward(lowering.a)
        if keeps_losses(lowering.a.case) and not self.each:
            yield Do(call=call("steps.backward.total", pending), into=(loss,))
            yield Do(call=call(".clear", pending))
        yield from lowering.before_backward()
        if self.each:
            if scaled:
                yield Do(call=call("steps.backward.scale", pending, SCALER))
            yield Do(call=call("steps.backward.each", pending, literal(sure)))
            yield Do(call=call(".clear", pending))
        else:
            if scaled:
                yield Do(call=call(".scale", SCALER, loss), into=(Variable("scaled_loss"),))
                loss = Variable("scaled_loss")
            function = ".backward" if sure else "steps.backward.if_required"
            if self.again:
                yield Do(call=call(function, loss, retain_graph=True))
            yield Do(call=call(function, loss))
        yield from lowering.after_backward()

    def words(self) -> str:
        """``backward twice``."""
        return f"backward{' twice' if self.again else ' of each' if self.each else ''}"

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
        """What is asked for, of the graph first."""
        asked = [op for op in a.case.program if isinstance(op, cls) and op.goes_back_again]
        several = "graph" if any(op.again for op in asked) else "losses"
        yield "second_backward", several if asked else "off"

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """Once; without the forwards and backwards that only accumulate."""
        for field, words in (("again", "retain_graph"), ("each", "a backward of each loss")):
            once = tuple(
                Backward() if isinstance(op, cls) and getattr(op, field) else op
                for op in case.program
            )
            if once != case.program:
                yield Simpler(msgspec.structs.replace(case, program=once), words)
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
