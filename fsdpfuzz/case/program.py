"""The training program: a short list of operations, run by FSDP and by the reference alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from fsdpfuzz.case.dimension import Dimension, Feature, Rejection, Simpler
from fsdpfuzz.case.lacking import leaves_out_all, may_lack_backward
from fsdpfuzz.case.operations import (
    OPERATIONS,
    Op,
    Progress,
)
from fsdpfuzz.case.operations.average_unmanaged import noted
from fsdpfuzz.errors import CaseError, ContractError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

LONGEST = 4
"""Operations taken away at once: those of an iteration."""


class ProgramDimension(Dimension):
    """All operations, and the order that they come in."""

    name = "program"

    def __init__(self) -> None:
        found: dict[str, Feature] = {}
        rejections: list[Rejection] = []
        for kind in OPERATIONS.values():
            for name, feature in kind.features.items():
                if name in found:
                    raise ContractError(f"two operations have a feature {name!r}")
                found[name] = feature
            rejections += kind.rejections
        self.features = found  # type: ignore[misc]
        self.rejections = tuple(rejections)  # type: ignore[misc]

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Those of each operation."""
        for kind in OPERATIONS.values():
            yield from kind.values(a)

    def check(self, a: Anatomy) -> None:
        """Each operation at its place."""
        progress = Progress()
        for i, op in enumerate(a.case.program):
            op.check(a.at(i - 1), progress, f"$.program[{i}]")
            # After its own check, which asks how things stood before it.
            noted(a.at(i - 1), op, progress)
            # A backward with nothing to go back through comes to no unit.
            gone = (op.gives_gradients and not may_lack_backward(a)) or op.renews
            progress.form = None if op.renews else progress.form
            progress.left = op.runs_model or (progress.left and not gone)
        lacking = leaves_out_all(a)
        if lacking is not None:
            words = "its forwards leave out all that is trained, so that its loss requires no grad"
            raise CaseError(words, path=f"$.program[{lacking}]")

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """Fewer operations, then plainer ones.

        No program becomes one that nobody would write: a loss keeps its backward, and nothing
        uses gradients that are not reduced.
        """
        program = case.program
        orderly = is_orderly(program)
        for length in range(min(LONGEST, len(program) - 1), 0, -1):
            # From the end: what comes after the finding goes first.
            for start in range(len(program) - length, -1, -1):
                gone = range(start, start + length)
                left = program[:start] + program[gone.stop :]
                # A case that is misuse from the start may become another one, but no sound one may
                # become misuse.
                if _keeps_partners(program, gone) and (not orderly or is_orderly(left)):
                    yield Simpler(msgspec.structs.replace(case, program=left))
        for i, (op, following) in enumerate(pairwise(program)):
            # One of several losses that wait for the same backward.
            if all(each.waits for each in (op, following)):
                left = program[:i] + program[i + 1 :]
                yield Simpler(msgspec.structs.replace(case, program=left))
        for kind in OPERATIONS.values():
            yield from kind.simpler(case)


def _keeps_partners(program: Sequence[Op], gone: range) -> bool:
    """Whether each backward that is left has a loss, and only its own, and each that goes takes
    its losses along."""
    losses: list[bool] = []  # of each forward that waits for the next backward, whether it is left
    for i, op in enumerate(program):
        if op.waits:
            losses.append(i not in gone)
        elif op.gives_gradients:
            if any(losses) == (i in gone):
                return False
            losses.clear()
    return True


def is_orderly(program: Sequence[Op]) -> bool:
    """Whether each loss gets its backward, and what uses gradients or saves state comes after
    they were reduced."""
    pending = False
    for op in program:
        if op.waits:
            pending = True
        elif op.gives_gradients:
            pending = False
        elif op.needs_reduced and pending:
            return False
    return not pending and uses_reduced(program)


def uses_reduced(program: Sequence[Op]) -> bool:
    """Whether gradients that wait for their reduction are used by nothing, and nothing is saved."""
    reduces = reduced = True
    for op in program:
        if op.waits:
            reduces = op.reduces
        elif op.gives_gradients:
            reduced = reduces
        elif op.needs_reduced and not reduced:
            return False
    return True
