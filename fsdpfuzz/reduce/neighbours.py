"""The one enumeration of plainer and smaller cases."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import msgspec

from fsdpfuzz.case import (
    DIMENSIONS,
    CaseSpec,
    Dimension,
    Simpler,
    anatomy,
    calls_by_the_book,
    decode,
    digest,
    encode,
    foreseen_rejections,
)
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce.tree import smaller_models


def simpler(case: CaseSpec) -> Iterator[Simpler]:
    """Every plainer or smaller neighbour of a case: sound, different, each once.

    Dimensions give those of their own (`Dimension.simpler`), the model is taken apart here. A
    neighbour that FSDP documents to refuse is left out, unless the case is refused itself, and
    so is one that calls modules as FSDP documents not to.
    """
    seen = {digest(case)}
    for neighbour in _all(case):
        if usable(case, neighbour.case) and digest(neighbour.case) not in seen:
            seen.add(digest(neighbour.case))
            yield neighbour


def _all(case: CaseSpec) -> Iterator[Simpler]:
    for dimension in DIMENSIONS:
        yield from dimension.simpler(case)
    for smaller in smaller_models(case):
        yield Simpler(smaller)
    if case.seed:
        yield Simpler(msgspec.structs.replace(case, seed=0))


def usable(case: CaseSpec, neighbour: CaseSpec) -> bool:
    """Whether a neighbour can be read back, and is refused, or misuse, only if the case is."""
    if not _sound(neighbour) or (_refused(neighbour) and not _refused(case)):
        return False
    return calls_by_the_book(anatomy(neighbour)) or not calls_by_the_book(anatomy(case))


@lru_cache(maxsize=4096)
def _sound(case: CaseSpec) -> bool:
    try:
        decode(encode(case))  # `check` alone takes types and ranges for granted.
    except CaseError:
        return False
    return True


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
