"""FQNs of modules: joining them, and which lies inside which."""

from __future__ import annotations

from collections.abc import Iterable


def join(*parts: str) -> str:
    """``a.b`` from its parts, empty ones left out."""
    return ".".join(part for part in parts if part)


def within(path: str, outer: str) -> bool:
    """Whether the module at ``path`` is ``outer`` or lies inside it."""
    return not outer or path == outer or path.startswith(f"{outer}.")


def innermost(path: str, units: Iterable[str]) -> str | None:
    """The deepest of ``units`` that contains the module at ``path``, or None."""
    chosen = units if isinstance(units, frozenset | set | dict) else frozenset(units)
    while path not in chosen:
        if not path:
            return None
        path = path.rpartition(".")[0]
    return path


def outermost(units: Iterable[str]) -> tuple[str, ...]:
    """Those of ``units`` that lie in no other: what FSDP calls the roots."""
    chosen = tuple(units)
    return tuple(path for path in chosen if not any(within(path, u) for u in chosen if u != path))


def depth(path: str) -> int:
    """How many modules lie around the one at ``path``; 0 for the root."""
    return path.count(".") + 1 if path else 0
