"""Which ranks went another way: the first collective on which their recordings differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fsdpfuzz.wire import Collective, Recording


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The odd ranks, the first collective on which the ranks differ, and how sure that is."""

    odd_ranks: tuple[int, ...] = ()
    text: str = ""
    certain: bool = False
    """False if the odd ranks may merely be slow: they issued nothing where others wait."""


def find_disagreement(recordings: Sequence[Recording], through: frozenset[int]) -> Disagreement:
    """Compares the collectives of all ranks by their number.

    ``through`` are the ranks that have answered or died: what they have not issued, they
    never will.
    """
    everyone = range(len(recordings))
    # A recorder keeps the last ones only: what the busiest has forgotten cannot be compared.
    oldest = max((r.collectives[0].number for r in recordings if r.collectives), default=1)
    newest = max((r.issued for r in recordings), default=0)
    for number in range(oldest, newest + 1):
        calls = {rank: recordings[rank].at(number) for rank in everyone}
        groups = _groups(calls)
        # The first that differs; whatever follows it may differ because of it.
        if len(groups) > 1:
            return _describe(groups, calls, number, through)
    return Disagreement()


def _groups(calls: Mapping[int, Collective | None]) -> list[list[int]]:
    """Ranks with the same call together, the largest group first; no call goes last."""
    groups: list[list[int]] = []
    for rank, call in calls.items():
        for group in groups:
            other = calls[group[0]]
            if call is other or (call is not None and other is not None and call.same(other)):
                group.append(rank)
                break
        else:
            groups.append([rank])
    # The majority is taken for right; of two ranks the one that issued anything, else rank 0.
    return sorted(groups, key=lambda group: (-len(group), calls[group[0]] is None, group[0]))


def _describe(
    groups: list[list[int]],
    calls: Mapping[int, Collective | None],
    number: int,
    through: frozenset[int],
) -> Disagreement:
    odd = tuple(sorted(rank for group in groups[1:] for rank in group))
    parts = []
    for group in sorted(groups, key=lambda group: (group is groups[0], group[0])):
        call = calls[group[0]]
        if call is not None:
            parts.append(f"{_ranks(group)} issued {call}")
            continue
        done = [rank for rank in group if rank in through]
        busy = [rank for rank in group if rank not in through]
        if done:
            parts.append(f"{_ranks(done)} ended without a collective #{number}")
        if busy:
            parts.append(f"{_ranks(busy)} issued no collective #{number}")
    different = len({group[0] for group in groups if calls[group[0]] is not None}) > 1
    ended = any(calls[rank] is None for rank in through if rank in calls)
    return Disagreement(odd, ", ".join(parts), different or ended)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
