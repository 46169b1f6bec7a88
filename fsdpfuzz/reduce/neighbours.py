"""The one enumeration of plainer and smaller cases."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

import msgspec

from fsdpfuzz.case import (
    DIMENSIONS,
    CaseSpec,
    Dimension,
    Imported,
    Op,
    Simpler,
    anatomy,
    calls_by_the_book,
    decode,
    digest,
    dtypes_fit,
    encode,
    foreseen_rejections,
    overrides_fit,
    uses_reduced,
)
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce.names import Rename, renamed
from fsdpfuzz.reduce.tree import smaller_models


def simpler(case: CaseSpec) -> Iterator[Simpler]:
    """Every plainer or smaller neighbour of a case: sound, different, each once.

    Dimensions give those of their own (`Dimension.simpler`), the model is taken apart here. A
    neighbour that FSDP documents to refuse is left out, unless the case is refused itself, and
    so is one that calls modules as FSDP documents not to, whose units' dtypes clash, or that uses
    gradients which wait for their reduction.
    """
    # By digest: dimensions come to the same neighbour in several ways.
    seen = {digest(case)}
    for neighbour in _all(case):
        if usable(case, neighbour.case) and digest(neighbour.case) not in seen:
            seen.add(digest(neighbour.case))
            yield neighbour


def _all(case: CaseSpec) -> Iterator[Simpler]:
    for dimension in DIMENSIONS:
        for step in dimension.simpler(case):
            yield step
            # Averaging what is ignored goes with what was; no option by itself, so without words.
            yield Simpler(_without_lost_operations(step.case))
    for smaller in smaller_models(case):
        yield Simpler(_without_lost_operations(smaller))
    for program in _about_first_parameters(case):
        yield Simpler(msgspec.structs.replace(case, program=program))
    if case.seed:
        yield Simpler(msgspec.structs.replace(case, seed=0))


def _about_first_parameters(case: CaseSpec) -> Iterator[tuple[Op, ...]]:
    """Programs that are about the first parameter of a module instead of a later one.

    Others, as biases, may be zero at first and need a step before anything shows of them.
    """
    for place in anatomy(case).places:
        names = [p.fqn for p in place.parameters]
        for name in names[1:]:
            found = renamed(case, lambda path: path, _instead(name, names[0]))
            if found is not None and found.program != case.program:
                yield found.program


def _instead(old: str, new: str) -> Rename:
    return lambda fqn: new if fqn == old else fqn


def _without_lost_operations(case: CaseSpec) -> CaseSpec:
    """The case without operations that are about what it does not have, as a flip of a switch."""
    left = case
    # One by one: what the next operation is refused for may go with the one before it.
    while (place := _unsound(left)) is not None:
        lost = _OPERATION.match(place)
        if lost is None or len(left.program) == 1:
            return case
        number = int(lost[1])
        program = (*left.program[:number], *left.program[number + 1 :])
        left = msgspec.structs.replace(left, program=program)
    return left


def usable(case: CaseSpec, neighbour: CaseSpec) -> bool:
    """Whether a neighbour can be read back, and is refused, or misuse, only if the case is."""
    if isinstance(case.model, Imported) and case.model.wrapped:
        # They are what the target's own code does, but for what was drawn around it.
        own = case.model.own_frozen
        if (case.plan, case.mesh) != (neighbour.plan, neighbour.mesh):
            return False
        if neighbour.frozen not in (case.frozen, own) or (
            neighbour.checkpoints not in (case.checkpoints, ())
        ):
            return False
    if _unsound(neighbour) is not None or (_refused(neighbour) and not _refused(case)):
        return False
    if uses_reduced(case.program) and not uses_reduced(neighbour.program):
        return False
    return all(
        holds(anatomy(neighbour)) or not holds(anatomy(case))
        for holds in (calls_by_the_book, dtypes_fit, overrides_fit)
    )


@lru_cache(maxsize=4096)
def _unsound(case: CaseSpec) -> str | None:
    """Where the case is wrong; None if it can be read back."""
    try:
        decode(encode(case))  # `check` alone takes types and ranges for granted.
    except CaseError as error:
        return error.path
    return None


@lru_cache(maxsize=1024)
def _refused(case: CaseSpec) -> bool:
    return bool(foreseen_rejections(anatomy(case)))


def plainest(case: CaseSpec, dimensions: tuple[Dimension, ...]) -> CaseSpec:
    """The case with everything in some dimensions as plain as it gets, no run in between."""
    before = None
    while before != case:
        before = case  # what is refused beside an option may be plain once that one is gone
        for dimension in dimensions:
            for _ in range(_STEPS):
                step = next((s.case for s in dimension.simpler(case) if usable(case, s.case)), None)
                if step is None or step == case:
                    break
                case = step
    return case


_STEPS = 40
_OPERATION = re.compile(r"\$\.program\[(\d+)\]")
