"""By what a script knows the exception that it is about."""

from __future__ import annotations

import builtins
import re

from fsdpfuzz.verdict import Finding, gist

MAX_FRAGMENT = 60


def signature_of(finding: Finding | None) -> tuple[str, str]:
    """The exception's type, as far as it is built in, and a part of its message without numbers."""
    failure = finding.failure if finding is not None else None
    if failure is None:
        return "Exception", ""
    kind = getattr(builtins, failure.type, None)
    known = isinstance(kind, type) and issubclass(kind, BaseException)
    pieces = re.split(r"0x[0-9a-f]+|\d+|'[^']*'|\"[^\"]*\"", gist(failure.text))
    longest = max((piece.strip() for piece in pieces), key=len, default="")
    # What torch raises need not be an Exception: CheckpointException is none.
    return (failure.type if known else "BaseException"), longest[:MAX_FRAGMENT]
