"""Checks of names that have to stand for something in the model."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fsdpfuzz.errors import CaseError


def check_names(names: Sequence[str], known: Collection[str], at: str, what: str) -> None:
    """Raises :class:`CaseError` for a name that is not known, or stands there twice."""
    for i, name in enumerate(names):
        if name not in known:
            raise CaseError(f"the model has no {what} {name!r}", path=f"{at}[{i}]")
        if name in names[:i]:
            raise CaseError(f"{name!r} stands here twice", path=f"{at}[{i}]")
