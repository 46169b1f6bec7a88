"""When units are gathered that are prefetched, and when backward reduces them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from fsdpfuzz.case import Anatomy, within
from fsdpfuzz.case.units.prefetch_list import listed_in_backward, listed_in_forward
from fsdpfuzz.case.wrap import Fsdp2Unit

_Lists = Mapping[str, Sequence[str]]


def begun_in_turn(a: Anatomy, begun: Sequence[str]) -> bool:
    """Whether each unit that is prefetched in a forward is called in it once, after who names it.

    Else it may be gathered for a later pass, or once more than it is called.
    """
    return _in_turn(a, listed_in_forward(a), begun)


def ended_in_turn(a: Anatomy, ended: Sequence[str]) -> bool:
    """The same of a backward, which comes to units in the reverse order."""
    return _in_turn(a, listed_in_backward(a), ended[::-1])


def _in_turn(a: Anatomy, lists: _Lists, order: Sequence[str]) -> bool:
    if not lists:
        return True
    if len(set(order)) < len(order) or any(c.recomputes for c in a.case.checkpoints):
        return False
    if any(not a.managed.get(path) for path in lists):
        return False  # the calls of units that manage nothing are not followed
    at = {path: i for i, path in enumerate(order)}
    return all(
        other in at and at[other] > at[path]
        for path, named in lists.items()
        if path in at
        for other in named
        if a.managed.get(other)
    )


def gathered(a: Anatomy, begun: Sequence[str]) -> list[str]:
    """The units of a forward, as they begin, in the order in which they are gathered."""
    lists = listed_in_forward(a)
    if not lists:
        return list(begun)
    return list(dict.fromkeys(each for path in begun for each in (path, *lists.get(path, ()))))


class Turn(NamedTuple):
    """What a backward does to a unit."""

    kind: Literal["gather", "reduce"]
    unit: str


def backward_order(
    a: Anatomy, begun: Sequence[str], ended: Sequence[str], entered: Collection[str]
) -> Iterator[tuple[Turn, Turn]]:
    """Pairs of which a backward does the first before the second, if it does both once.

    ``begun`` and ``ended`` are the units below one root as their forwards begin and end, and
    ``entered`` those of them with an input that requires grad.
    """
    told = listed_in_backward(a)
    for path, now in pairwise(ended):
        unit = a.options[now]
        # Where it is told nothing, it looks ahead to the next unit.
        if isinstance(unit, Fsdp2Unit) or unit.backward_prefetch is not None:
            for early in told.get(now, (path,)):
                yield Turn("gather", early), Turn("reduce", now)
    if not a.fsdp1:
        yield from _reduced_in_turn(a, begun, [] if told else ended, entered)


# ``RegisterPostBackwardFunction`` in fsdp/_fully_shard/_fsdp_param_group.py lies on the inputs that
# a unit's forward begins with, and autograd comes to what was called later first. Then
# ``_backward_prefetch`` of the unit before looks one unit ahead, and no further.
def _reduced_in_turn(
    a: Anatomy, begun: Sequence[str], ended: Sequence[str], entered: Collection[str]
) -> Iterator[tuple[Turn, Turn]]:
    """What a backward does after it has reduced a unit (fsdp2).

    Units without an input that requires grad it reduces at the end.
    """
    for i, now in enumerate(begun):
        if now in entered:
            for path in reversed(begun[:i]):
                yield Turn("reduce", now), Turn("reduce", path)
            over = {path for path in begun[:i] if _is_over(a, path, now)}
            for path, before in pairwise(ended):
                if before in over:
                    yield Turn("reduce", now), Turn("gather", path)


def _is_over(a: Anatomy, path: str, now: str) -> bool:
    """Whether the forward of a unit that began before another one's has ended by then, too."""
    # That of a list of modules may end with any call.
    return len(a.modules_of(path)) == 1 and not any(within(m, path) for m in a.modules_of(now))
