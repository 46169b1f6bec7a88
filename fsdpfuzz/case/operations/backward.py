"""Backward of all losses that wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.dimension import Simpler
from fsdpfuzz.case.lacking import may_lack_backward
from fsdpfuzz.case.operations.base import OperationBase, Progress, Word
from fsdpfuzz.case.operations.forward import Forward, most_pending
from fsdpfuzz.case.recipe import Do, Statement, Variable, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec


class Backward(OperationBase, tag="backward", frozen=True, kw_only=True):
    """Backward of all pending losses."""

    gives_gradients: ClassVar[bool] = True
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

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """A forward has to wait for it."""
        if not progress.pending:
            raise CaseError("backward without a pending forward", path=at)
        progress.reduced = all(progress.pending)
        progress.pending.clear()
        progress.cleared = False

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """The sum of the losses, its backward, and what stands for FSDP in the plain model."""
        loss = Variable("loss")
        if most_pending(lowering.a.case) > 1:
            pending = Variable("pending")
            yield Do(call=call("steps.backward.total", pending), into=(loss,))
            yield Do(call=call(".clear", pending))
        yield from lowering.before_backward()
        if may_lack_backward(lowering.a):
            yield Do(call=call("steps.backward.if_required", loss))
        else:
            yield Do(call=call(".backward", loss))
        yield from lowering.after_backward()

    def words(self) -> str:
        """Its name."""
        return "backward"

    def moves(self, now: Situation, a: Anatomy, rank: int) -> None:
        """What is trained may have a gradient."""
        now.graded.update(p.fqn for p in a.distinct if now.trained[p.fqn])

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """Without the forwards and backwards that only accumulate."""
        import msgspec

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
