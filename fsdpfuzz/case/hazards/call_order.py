"""The order in which calls begin and end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fsdpfuzz.case.paths import within

if TYPE_CHECKING:
    from fsdpfuzz.case.modules.walk import Called


def begins_and_ends(paths: Sequence[str]) -> Iterator[tuple[int, bool]]:
    """Of calls of these modules, in the order in which they begin: which begins, or ends (True)."""
    under_way: list[int] = []
    for i, path in enumerate(paths):
        while under_way and not _holds(paths[under_way[-1]], path):
            yield under_way.pop(), True
        yield i, False
        under_way.append(i)
    yield from ((i, True) for i in reversed(under_way))


def by_their_end(calls: Sequence[tuple[str, Called]]) -> list[tuple[str, Called]]:
    """Calls in the order in which they end, of those in which they begin."""
    order = begins_and_ends([call.path for _, call in calls])
    return [calls[i] for i, ends in order if ends]


def _holds(module: str, other: str) -> bool:
    return module != other and within(other, module)
