"""Which modules put out what one in them does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from fsdpfuzz.case.paths import innermost, join, within

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.modules.base import NodeBase


@lru_cache(maxsize=64)
def passing_on(a: Anatomy, path: str) -> frozenset[str]:
    """FQNs of the modules that put out what the one at ``path`` in them does, itself among them."""
    return _around(a, path, lambda node: node.passed_on())


@lru_cache(maxsize=64)
def passing_no_rows(a: Anatomy, path: str) -> frozenset[str]:
    """The same of modules that are given no rows."""
    return _around(a, path, lambda node: node.passes_no_rows())


@lru_cache(maxsize=64)
def ending_with(a: Anatomy, path: str) -> frozenset[str]:
    """FQNs of the modules that compute nothing that a backward needs behind the one at ``path``."""
    return _around(a, path, lambda node: node.ends_with())


def _around(a: Anatomy, path: str, handed: Callable[[NodeBase], Iterable[str]]) -> frozenset[str]:
    found = {path}
    at: str | None = path
    while at:
        around = at.rpartition(".")[0]
        # Those that a node brings along have none, and hand on what lies in them.
        outer = innermost(around, [p.path for p in a.places if p.node is not None])
        node = None if outer is None else a.by_path[outer].node
        if outer is None or node is None:
            break
        found.update(p for p in a.by_path if within(at, p) and within(p, outer) and p != outer)
        if at not in (join(outer, name) for name in handed(node)):
            break
        found.add(outer)
        at = outer
    return frozenset(found)
