"""What differs between two short texts, for a person."""

from __future__ import annotations

import math
import re
from difflib import SequenceMatcher

import msgspec

_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
MAX_TOKENS = 2_000


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a text, and whether the other text has it too."""

    text: str
    changed: bool


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Both texts in pieces; ``note`` says of two numbers how far apart they are."""

    observed: tuple[Piece, ...]
    expected: tuple[Piece, ...]
    note: str = ""


def difference(observed: str, expected: str) -> Difference:
    """Compares word by word; numbers as a whole."""
    note = _distance(observed, expected)
    if note or not observed or not expected:
        return Difference(
            observed=_whole(observed, expected), expected=_whole(expected, observed), note=note
        )
    first, second = _TOKEN.findall(observed)[:MAX_TOKENS], _TOKEN.findall(expected)[:MAX_TOKENS]
    left: list[Piece] = []
    right: list[Piece] = []
    for tag, a, b, c, d in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        changed = tag != "equal"
        for pieces, text in ((left, "".join(first[a:b])), (right, "".join(second[c:d]))):
            if text:
                pieces.append(Piece(text=text, changed=changed))
    return Difference(observed=tuple(left), expected=tuple(right))


def _whole(text: str, other: str) -> tuple[Piece, ...]:
    return (Piece(text=text, changed=text != other),) if text else ()


def _distance(observed: str, expected: str) -> str:
    try:
        a, b = float(observed), float(expected)
    except ValueError:
        return ""
    if not (math.isfinite(a) and math.isfinite(b)):
        return "not finite" if observed != expected else ""
    note = f"off by {a - b:+.3g}"
    if b and a != b:
        note += f", {a / b:.6g} times what it should be"
    return note
