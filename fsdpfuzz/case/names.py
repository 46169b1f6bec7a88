"""Checks of names that have to stand for something in the model."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from fsdpfuzz.errors import CaseError

_OF_A_PARAMETER = re.compile(r"^(\w+)\[(.*[^\d\]].*)\](?:\.(\w+))?$")


def parts_of(name: str) -> tuple[str, str, str]:
    """Variable, parameter and entry: those of ``optim[0.weight].exp_avg``; else the variable."""
    found = _OF_A_PARAMETER.match(name)
    return (found[1], found[2], found[3] or "") if found else (name, "", "")


def parameter_in(name: str) -> str:
    """The parameter that a name of a finding means, alone or as in ``full_params[0.weight]``."""
    return parts_of(name)[1] or name


def check_names(names: Sequence[str], known: Collection[str], at: str, what: str) -> None:
    """Raises :class:`CaseError` for a name that is not known, or stands there twice."""
    for i, name in enumerate(names):
        if name not in known:
            raise CaseError(f"the model has no {what} {name!r}", path=f"{at}[{i}]")
        if name in names[:i]:
            raise CaseError(f"{name!r} stands here twice", path=f"{at}[{i}]")
