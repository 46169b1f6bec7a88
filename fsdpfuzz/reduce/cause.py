"""Whether two findings are the same one."""

from __future__ import annotations

from fsdpfuzz.verdict import Finding


def alike(first: Finding, second: Finding) -> bool:
    """Whether the same invariant breaks in the same way, on whichever case and API.

    Exceptions are alike if they have the same type and come from the same place; numbers,
    names and wording do not count. What differs between two torches is like what differs in the
    same sense.
    """
    if (first.invariant, first.symptom) != (second.invariant, second.symptom):
        return False
    if first.change != second.change:
        return False
    one, other = first.failure, second.failure
    # An exception is never like a deviation, though both may break one invariant.
    if one is None or other is None:
        return one is other
    return (one.type, one.place, one.exitcode) == (other.type, other.place, other.exitcode)
