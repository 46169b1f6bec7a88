"""Losses that are exact zeros on one rank: gradients there are exact zeros, elsewhere they are not.

It is what a micro-batch of padding alone leaves of a masked loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.dimension import Dimension, Feature, Simpler
from fsdpfuzz.case.operations import Forward, Op
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec


class MaskedDimension(Dimension):
    """No loss, some, or all of those that a backward follows."""

    name = "masked"
    features: ClassVar[Mapping[str, Feature]] = {
        "masked": Feature(
            about="no, some, all: losses that are exact zeros on one rank, and so its gradients",
            group="Training",
            values=("no", "some", "all"),
        )
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """How many of them."""
        waiting = [op for op in a.case.program if isinstance(op, Forward) and op.waits]
        masked = [op for op in waiting if op.masked is not None]
        yield "masked", "no" if not masked else "some" if len(masked) < len(waiting) else "all"

    def check(self, a: Anatomy) -> None:
        """There is such a rank and another one, and a backward."""
        for i, op in enumerate(a.case.program):
            if not isinstance(op, Forward) or op.masked is None:
                continue
            at = f"$.program[{i}].masked"
            if op.masked >= a.case.world_size:
                text = f"rank {op.masked} exceeds world_size={a.case.world_size}"
                raise CaseError(text, path=at)
            # Exact zeros everywhere: nothing would be left to tell a right gradient from none.
            if a.case.world_size == 1:
                raise CaseError("it leaves no gradient where there is one rank", path=at)
            if not op.waits:
                raise CaseError("a loss without a backward cannot be masked", path=at)

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """None; fewer; on rank 0."""
        replace, ops = msgspec.structs.replace, case.program
        masked = [i for i, op in enumerate(ops) if _rank(op) is not None]
        if masked:
            yield Simpler(_changed(case, lambda _: None), "a loss that is zero on one rank")
        for left in masked if len(masked) > 1 else ():
            program = (replace(op, masked=None) if i == left else op for i, op in enumerate(ops))
            yield Simpler(replace(case, program=tuple(program)))
        if any(_rank(ops[i]) for i in masked):
            yield Simpler(_changed(case, lambda _: 0))

    def on_ranks(self, case: CaseSpec, size: int) -> CaseSpec:
        """On the last rank there is; a rank by itself has no other whose gradients count."""
        return _changed(case, lambda rank: None if size == 1 else min(rank, size - 1))


def _rank(op: Op) -> int | None:
    return op.masked if isinstance(op, Forward) else None


def _changed(case: CaseSpec, change: Callable[[int], int | None]) -> CaseSpec:
    """The case with another rank, or none, where there is one."""
    program = tuple(
        msgspec.structs.replace(op, masked=change(op.masked))
        if isinstance(op, Forward) and op.masked is not None
        else op
        for op in case.program
    )
    return msgspec.structs.replace(case, program=program)
