"""An iteration that an exception ends, after which fsdp2 starts over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from fsdpfuzz.case.dimension import Simpler
from fsdpfuzz.case.lacking import may_lack_backward
from fsdpfuzz.case.loss import forgotten, loss_into
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.operations.base import Progress
from fsdpfuzz.case.operations.interrupt import (
    Raising,
    called,
    open_modules,
    plainer,
    raising,
)
from fsdpfuzz.case.randomness import seeded
from fsdpfuzz.case.recipe import MODEL, Do, Inside, Statement, Variable, With, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec

METHOD = "reset_iter_state"


class Recover(Raising, tag="recover", frozen=True, kw_only=True):
    """Forward and backward on the next batch, an exception on all ranks, ``reset_iter_state()``.

    FSDPModule documents it as the way to go on, with what there was of gradients lost. So the
    program drops those that have been reduced by then, too, and takes the batch again.
    """

    clears_gradients: ClassVar[bool] = True
    starts_over: ClassVar[bool] = True

    when: Literal["begin", "end", "gradient"] = "gradient"
    """As the module's forward begins or ends, or as a gradient comes to what it returned."""

    @property
    def frees_gradients(self) -> bool:
        """All of the model's."""
        return True

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """Of fsdp2's root, which all ranks call alike; in no iteration that has begun before.

        fsdp1 has nothing of the kind: what an exception in backward leaves to it, it reduces with
        the next batch's gradients, and in no forward does it look whether it is idle.
        """
        check_names((self.module,), a.by_path, f"{at}.module", "module")
        if a.fsdp1:
            raise CaseError(f"fsdp1 has no {METHOD}", path=at)
        if "" not in a.options:
            raise CaseError(f"{METHOD} is called on the root, which is no unit here", path=at)
        if progress.pending:
            raise CaseError("recover while a forward waits for its backward", path=at)
        if a.case.finalization != "automatic":
            raise CaseError("recover where the program finishes each backward", path=at)
        if a.switches or self.module not in raising(a):
            text = f"nobody knows that each rank calls {self.module!r}"
            raise CaseError(text, path=f"{at}.module")
        progress.reduced = progress.cleared = True
        progress.left = progress.own = False

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """A forward, and a backward if it comes to that, on the inputs of the next forward."""
        a, index, x = lowering.a, lowering.coming_index, Variable("x")
        yield Do(call=a.case.inputs.drawn(a, index), into=(x,))
        yield from seeded(a, index)
        yield from forgotten(a)
        module = Inside("model", self.module) if self.module else MODEL
        run = lowering.called(MODEL, x, by_method=False)
        if self.when == "gradient":
            output, lost = Variable("output"), Variable("lost")
            back = "steps.backward.if_required" if may_lack_backward(a) else ".backward"
            body = (
                Do(call=run, into=(output,)),
                *loss_into(a, lost),
                Do(call=call(back, lost)),
            )
            yield With(context=call("steps.recover.failing", module), body=body)
        else:
            caught = call("steps.interrupt.interrupted", module, self.when == "end")
            yield With(context=caught, body=(Do(call=run),))
        # One call for each: what is sharded within a replicated unit has a state of its own.
        for path in a.roots:
            root = Inside("model", path) if path else MODEL
            yield Do(call=call(f".{METHOD}", root), who="fsdp")
        yield Do(call=call(".zero_grad", MODEL))
        lowering.reduced = False

    def cut_short(self, a: Anatomy) -> tuple[Sequence[str], Sequence[str]]:
        """Nothing of the forward where the exception comes in backward."""
        if self.when == "gradient":
            return (), called(a)
        return open_modules(a, self.module, done=self.when == "end")

    def words(self) -> str:
        """``exception in backward of 0, reset``."""
        when = "in backward" if self.when == "gradient" else f"at the {self.when}"
        return f"exception {when} of {self.module or 'the root'}, reset"

    def moves(self, now: Situation, a: Anatomy, rank: int) -> None:
        """Nothing has a gradient."""
        now.graded.clear()
        now.read.clear()
        now.given = now.zeros = frozenset()

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """In backward; by the module around it, then by the root."""
        return plainer(case, cls, when="gradient")
