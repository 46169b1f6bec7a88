"""A function that the user applies to each module between iterations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from fsdpfuzz.case.base import ModulePath, on
from fsdpfuzz.case.dimension import ON, Feature, Simpler, one
from fsdpfuzz.case.lacking import unreached_roots
from fsdpfuzz.case.operations.base import OperationBase, Progress
from fsdpfuzz.case.recipe import MODEL, Do, Inside, Statement, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec


# The function of a user finds what is registered: in a unit that is whole, parameters that FSDP2
# lets go of when it reshards.
def may_miss_the_shards(a: Anatomy) -> bool:
    """Whether units of fsdp2 that have parameters may still be whole after a backward."""
    return any(a.owned[path] for path in unreached_roots(a))


class Apply(OperationBase, tag="apply", frozen=True, kw_only=True):
    """``module.apply(fn)``, where ``fn`` changes in place what each module trains of its own.

    fsdp1 gathers the parameters of each unit for it, and writes them back; those of fsdp2 are
    DTensors, of which each rank changes its shards.
    """

    features: ClassVar[Mapping[str, Feature]] = {
        "applied": Feature(
            about="no, scaled, smoothed (drawn towards the mean of the whole parameter), several: "
            "what a function does that module.apply() is given between iterations",
            group="Training",
            values=("no", "scaled", "smoothed", "several"),
            excludes={"no": {"applied_below": ("on",)}},
        ),
        "applied_below": Feature(
            about="on when it is the apply() of a unit below the root", group="Training", values=ON
        ),
    }
    needs_reduced: ClassVar[bool] = True
    casts_buffers: ClassVar[bool] = True
    compared: ClassVar[tuple[Literal["grad", "param"], ...]] = ("param",)

    module: ModulePath = ""
    """The root, or a unit."""
    smooth: bool = False
    """Draws values towards the mean of their parameter; else all are multiplied."""

    @property
    def asks_trained(self) -> bool:
        """It changes what is trained."""
        return True

    @property
    def within(self) -> str:
        """The module."""
        return self.module

    @property
    def rounds(self) -> bool:
        """In a mean."""
        return self.smooth

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """Between iterations, and with fsdp2 while all is sharded.

        A module in a unit of fsdp1 does not know of the unit, which has its parameters.
        """
        if self.module and self.module not in a.units:
            raise CaseError(f"{self.module!r} is neither the root nor a unit", path=f"{at}.module")
        if hidden(a, self.module):
            text = f"name the root: before {self.module!r} comes a wrapper with its own `module`"
            raise CaseError(text, path=f"{at}.module")
        if progress.pending or not progress.reduced:
            raise CaseError("apply in the middle of an iteration", path=at)
        if not a.fsdp1 and (progress.left or may_miss_the_shards(a)):
            raise CaseError("apply while units may be whole", path=at)
        if a.split_ties:
            raise CaseError("a parameter tied across units, of which FSDP makes two", path=at)

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """To FSDP's model as to the plain one."""
        how = "smoothed" if self.smooth else "scaled"
        module = Inside("model", self.module) if self.module else MODEL
        yield Do(call=call(f"steps.apply.{how}", module))

    def words(self) -> str:
        """``apply to 0, smooth``."""
        words = ["apply"] + ([f"to {self.module}"] if self.module else [])
        return " ".join(words) + (", smooth" if self.smooth else "")

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """What is done, and where."""
        found = [op for op in a.case.program if isinstance(op, Apply)]
        done = ("smoothed" if op.smooth else "scaled" for op in found)
        yield "applied", one(done, several="several")
        yield "applied_below", on(any(op.module for op in found))

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """To the root; a product."""
        replace, ops = msgspec.structs.replace, case.program
        plainer = (
            ("module", "", "apply of a unit below the root"),
            ("smooth", False, "a function that takes whole parameters"),
        )
        for i, op in enumerate(ops):
            for name, value, words in plainer if isinstance(op, Apply) else ():
                if getattr(op, name) != value:
                    program = (*ops[:i], replace(op, **{name: value}), *ops[i + 1 :])
                    yield Simpler(replace(case, program=program), words)


def hidden(a: Anatomy, path: str) -> bool:
    """Whether a wrapper of fsdp1 has something else by a name on the way to a module.

    ``FullyShardedDataParallel.module`` is the module that it wraps.
    """
    return a.fsdp1 and "module" in path.split(".")
