"""Counting what torch does on the way."""

from __future__ import annotations

import warnings
from typing import Any


# Never put back: a script ends with its training.
def calls_of(owner: Any, name: str) -> list[tuple[Any, ...]]:
    """The arguments of every call of ``owner.name`` from now on, as the calls come."""
    calls, original = [], getattr(owner, name)

    def noted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return original(*args, **options)

    setattr(owner, name, noted)
    return calls


def warnings_given() -> list[str]:
    """The texts of all warnings from now on, as they come."""
    told: list[str] = []
    # The usual filter shows a warning once for each line of code.
    warnings.simplefilter("always")
    warnings.showwarning = lambda message, *_, **__: told.append(str(message))
    return told
