"""What a shrunk case still does that its finding does not need.

A strategy draws programs that make sense, so shrinking leaves whole iterations behind; a
finding may need no more than a part of one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from fsdpfuzz.errors import CaseError
from fsdpfuzz.spec import (
    Backward,
    CaseSpec,
    Forward,
    Op,
    StateDict,
    Step,
    check,
    foreseen_rejections,
)

MAX_TRIES = 40
MAX_SECONDS = 15.0
LONGEST = 4
"""Operations taken away at once: those of an iteration."""


def trim(
    case: CaseSpec, shows: Callable[[CaseSpec], bool], *, max_tries: int = MAX_TRIES
) -> CaseSpec:
    """``case`` without the twins, probes and operations that ``shows`` can do without.

    No program becomes one that nobody would write: a loss keeps its backward, and nothing uses
    gradients that are not reduced. At most ``max_tries`` cases are run, for about
    `MAX_SECONDS` seconds.
    """
    left, end = max_tries, time.monotonic() + MAX_SECONDS
    orderly = is_orderly(case.program)
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(case):
            if not _is_sound(smaller) or (_trains(case) and not _trains(smaller)):
                continue
            if orderly and not is_orderly(smaller.program):
                continue
            if not left or time.monotonic() > end:
                return case
            left -= 1
            if shows(smaller):
                case, progress = smaller, True
                break
    return case


def _smaller(case: CaseSpec) -> Iterator[CaseSpec]:
    replace = msgspec.structs.replace
    if case.twins:
        yield replace(case, twins=())
    if case.probes:
        yield replace(case, probes=())
    program = case.program
    for length in range(min(LONGEST, len(program) - 1), 0, -1):
        # From the end: what comes after the finding goes first.
        for start in range(len(program) - length, -1, -1):
            if _is_closed(program[start : start + length]):
                yield replace(case, program=program[:start] + program[start + length :])


def _is_closed(ops: Sequence[Op]) -> bool:
    """Whether each loss has its backward among them, and the reverse: none changes its partner."""
    pending = False
    for op in ops:
        match op:
            case Forward(grad=True, drop=False):
                pending = True
            case Backward() if not pending:
                return False
            case Backward():
                pending = False
            case _:
                pass
    return not pending


def is_orderly(program: Sequence[Op]) -> bool:
    """Whether each loss gets its backward, and what uses gradients or saves state comes after
    they were reduced."""
    pending, reduced = False, True
    for op in program:
        match op:
            case Forward(grad=True, drop=False):
                pending, reduced = True, op.sync
            case Backward():
                pending = False
            case Step() | StateDict() if pending or not reduced:
                return False
            case _:
                pass
    return not pending


def _trains(case: CaseSpec) -> bool:
    return any(isinstance(op, Backward) for op in case.program)


def _is_sound(case: CaseSpec) -> bool:
    try:
        check(case)
    except CaseError:
        return False
    return not foreseen_rejections(case)
