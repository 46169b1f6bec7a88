"""When units are gathered that fsdp2 is told to prefetch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fsdpfuzz.case import Anatomy
from fsdpfuzz.case.units.prefetch_list import listed, listed_in_backward

_Lists = Mapping[str, Sequence[str]]


def begun_in_turn(a: Anatomy, begun: Sequence[str]) -> bool:
    """Whether each unit that is prefetched in a forward is called in it once, after who names it.

    Else it may be gathered for a later pass, or once more than it is called.
    """
    return _in_turn(a, listed(a, "prefetched_in_forward"), begun)


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
    lists = listed(a, "prefetched_in_forward")
    if not lists:
        return list(begun)
    return list(dict.fromkeys(each for path in begun for each in (path, *lists.get(path, ()))))


def gathered_before(a: Anatomy, path: str, usual: str) -> Sequence[str]:
    """What backward gathers before it reduces a unit; where it is told nothing, the ``usual``."""
    return listed_in_backward(a).get(path, (usual,))
