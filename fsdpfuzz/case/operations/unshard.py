"""A unit that is gathered by hand before a forward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.base import ModulePath
from fsdpfuzz.case.dimension import Feature, Simpler, one
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.operations.base import OperationBase, Progress
from fsdpfuzz.case.operations.forward import calls_below_the_root
from fsdpfuzz.case.recipe import Do, Statement, Variable, call
from fsdpfuzz.case.sides import unit_module
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec


class Unshard(OperationBase, tag="unshard", frozen=True, kw_only=True):
    """``unshard()`` of one unit (fsdp2), which the forward that follows finds whole."""

    features: ClassVar[Mapping[str, Feature]] = {
        "unsharded": Feature(
            about="no, at once, async (the forward waits), waited (for the handle), several: how "
            "units are gathered by hand before a forward (fsdp2 only)",
            group="Training",
            values=("no", "at once", "async", "waited", "several"),
            apis=("fsdp2",),
        )
    }

    unit: ModulePath
    async_op: bool = False
    wait: bool = False
    """Whether it waits for the handle itself; else FSDP does in forward."""

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """A unit of fsdp2, gathered right before a forward of the root.

        A unit that is whole while parameters change would go on with the old ones.
        """
        if a.fsdp1:
            raise CaseError("an operation of fsdp2 alone", path=at)
        check_names((self.unit,), a.options, f"{at}.unit", "unit")
        if self.wait and not self.async_op:
            raise CaseError("without async_op there is nothing to wait for", path=f"{at}.wait")
        # ``FSDPParamGroup.unshard`` returns at once for a unit that is whole: nothing would gather
        # it anew.
        for op, following in pairwise((*a.case.program, None)):
            if not isinstance(op, Unshard) or isinstance(following, Unshard):
                continue
            if following is None or not following.waits or calls_below_the_root((following,)):
                raise CaseError("a forward of the root with its backward comes next", path=at)

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """The reference has nothing to gather."""
        unit, handle = unit_module(lowering.a, self.unit), Variable("handle")
        if not self.async_op:
            yield Do(call=call(".unshard", unit), who="fsdp")
            return
        started = call(".unshard", unit, async_op=True)
        yield Do(call=started, into=(handle,) if self.wait else (), who="fsdp")
        if self.wait:
            yield Do(call=call(".wait", handle), who="fsdp")

    def words(self) -> str:
        """``unshard 0 async``."""
        words = ["unshard", self.unit or "root"]
        words += ["async"] if self.async_op else []
        words += ["and wait"] if self.wait else []
        return " ".join(words)

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """How, if at all."""
        if not a.fsdp1:
            ways = (
                "waited" if op.wait else "async" if op.async_op else "at once"
                for op in a.case.program
                if isinstance(op, Unshard)
            )
            yield "unsharded", one(ways, several="several")

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """Without waiting; then at once."""
        replace = msgspec.structs.replace
        for name, words in (("wait", "waiting for an unshard"), ("async_op", "async_op")):
            plain = tuple(
                replace(op, **{name: False}) if isinstance(op, Unshard) else op
                for op in case.program
            )
            if plain != case.program:
                yield Simpler(replace(case, program=plain), words)
