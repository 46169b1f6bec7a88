"""A forward that an exception ends, which the program catches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.base import ModulePath
from fsdpfuzz.case.dimension import Feature, Simpler, one
from fsdpfuzz.case.flow import start
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.operations.base import OperationBase, Progress
from fsdpfuzz.case.operations.forward import Forward
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.randomness import seeded
from fsdpfuzz.case.recipe import MODEL, Do, Inside, Statement, Variable, With, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.modules.walk import Called
    from fsdpfuzz.case.spec import CaseSpec


class Raising(OperationBase, frozen=True, kw_only=True):
    """An exception in a module, on all ranks, which the program catches."""

    module: ModulePath = ""
    """FQN of the module that raises."""


class Interrupt(Raising, tag="interrupt", frozen=True, kw_only=True):
    """One module of the model raises in a forward, on all ranks; the program takes the next batch.

    As where a model finds fault with its inputs: units have run by then, and others have not.
    """

    features: ClassVar[Mapping[str, Feature]] = {
        "interrupted": Feature(
            about="no, begin, end, several: whether a module raises in a forward, as its own "
            "begins or ends, and the program catches that and goes on",
            group="Training",
            values=("no", "begin", "end", "several"),
            excludes={
                key: {"flips": ("some", "all"), "recorded": ("1",)}
                for key in ("begin", "end", "several")
            },
        )
    }
    interrupts: ClassVar[bool] = True

    done: bool = False
    """Raises at the end of the module's own forward, else as that begins."""

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """All ranks call the module, and a forward of the root with its backward comes next.

        fsdp1 lets nobody look into what it left in the midst of a forward: it asserts that it is
        idle, as for ``no_sync`` (``_assert_state`` in fsdp/fully_sharded_data_parallel.py,
        ``_unshard_fsdp_state_params`` in fsdp/_unshard_param_utils.py). And where
        parameters change meanwhile, a unit that was left whole computes with the old ones: with
        either API ``unshard`` returns at once.
        """
        check_names((self.module,), a.by_path, f"{at}.module", "module")
        if self.module not in raising(a):
            text = f"nobody knows that each rank calls {self.module!r}"
            raise CaseError(text, path=f"{at}.module")
        for op, following in pairwise((*a.case.program, None)):
            if isinstance(op, Interrupt) and not goes_on(a, following):
                raise CaseError("a forward of the root with its backward comes next", path=at)
        progress.left = True

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """A forward on the inputs of the one that follows."""
        a, index, x = lowering.a, lowering.coming_index, Variable("x")
        yield Do(call=a.case.inputs.drawn(a, index), into=(x,))
        yield from seeded(a, index)
        module = Inside("model", self.module) if self.module else MODEL
        caught = call("steps.interrupt.interrupted", module, self.done)
        run = Do(call=lowering.called(MODEL, x, by_method=False))
        yield With(context=caught, body=(run,))

    def cut_short(self, a: Anatomy) -> tuple[Sequence[str], Sequence[str]]:
        """Up to the module that raises."""
        return open_modules(a, self.module, done=self.done)

    def words(self) -> str:
        """``exception at the end of 0``."""
        return f"exception at the {_when(self)} of {self.module or 'the root'}"

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """When the module raises."""
        when = (_when(op) for op in a.case.program if isinstance(op, Interrupt))
        yield "interrupted", one(when, several="several")

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """As the forward begins; by the module around it, then by the root."""
        return plainer(case, cls, done=False)


def plainer(case: CaseSpec, kind: type[Raising], **plain: object) -> Iterator[Simpler]:
    """Operations of a kind as at their plainest; by the module around, then by the root."""
    replace, ops = msgspec.structs.replace, case.program
    for i, op in enumerate(ops):
        if not isinstance(op, kind):
            continue
        around = dict.fromkeys(("", op.module.rpartition(".")[0])) if op.module else ()
        changes: list[Mapping[str, object]] = [plain, *({"module": path} for path in around)]
        for fields in changes:
            less = replace(op, **fields)
            if less != op:
                yield Simpler(replace(case, program=(*ops[:i], less, *ops[i + 1 :])))


def _when(op: Interrupt) -> str:
    return "end" if op.done else "begin"


def goes_on(a: Anatomy, following: OperationBase | None) -> bool:
    """Whether an operation may follow an exception."""
    if following is None or following.interrupts:
        return following is not None
    # fsdp1 enters ``no_sync`` before the forward, in the state that the exception has left.
    return following.waits and not following.called and (following.reduces or not a.fsdp1)


def raising(a: Anatomy) -> tuple[str, ...]:
    """FQNs of the modules that each forward calls on all ranks: none where nobody knows."""
    if a.imported is not None or a.optional:
        return ()
    return tuple(path for path in dict.fromkeys(called(a)) if not a.by_path[path].by_method)


def called(a: Anatomy) -> list[str]:
    """FQNs of the modules that a forward of the root calls, in order, parents before children."""
    return [each.path for each in root_calls(a, start(a))]


def root_calls(a: Anatomy, now: Situation) -> list[Called]:
    """What a forward of the root calls, in order, parents before children."""
    return list(a.calls(Forward(), now))


def open_modules(a: Anatomy, module: str, *, done: bool) -> tuple[list[str], list[str]]:
    """The modules whose forward one that raises leaves unfinished, and all whose had begun.

    For fsdp2 what FSDP does at the end of a unit's forward comes before a hook on the module, for
    fsdp1 after it: there it lies in a wrapper.
    """
    open_: list[str] = []
    begun: list[str] = []
    for path in (*called(a), None):
        while open_ and not (path and within(path, open_[-1]) and path != open_[-1]):
            ended = open_.pop()
            if done and ended == module:
                return [*open_, *([ended] if a.fsdp1 else ())], begun
        if path is not None:
            open_.append(path)
            begun.append(path)
            if not done and path == module:
                break
    return open_, begun
