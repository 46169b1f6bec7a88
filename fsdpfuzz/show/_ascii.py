"""Text for terminals that have no more than ASCII: signs of ours in other words."""

from __future__ import annotations

import codecs
import os
from collections.abc import Mapping
from typing import TextIO

SIGNS = {
    "×": "x",
    "→": "->",
    "·": "-",
    "–": "-",
    "—": "-",
    "…": "...",
    "≤": "<=",
    "≥": ">=",
    "│": "|",
    "─": "-",
    "━": "-",
    "├": "|",
    "└": "`",
    "┌": "+",
    "┐": "\\",
    "┘": "/",
    "µ": "u",
    "╶": "-",
    "╴": "-",
}
ERRORS = "fsdpfuzz.ascii"
"""Name of the way in which `spell_out` has a stream encode what its encoding lacks."""

_PLAIN = ("C", "POSIX")


def wants_ascii(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the locale is C or POSIX by name, for which Python itself takes UTF-8.

    Not where Python was told which encoding to use, nor where no locale is named, as in most
    containers, whose output goes to something that knows UTF-8.
    """
    if environ.get("PYTHONIOENCODING") or environ.get("PYTHONUTF8"):
        return False
    # Python sets LC_CTYPE itself where it takes UTF-8 instead of C, so that says nothing.
    return (environ.get("LC_ALL") or environ.get("LANG")) in _PLAIN


def in_ascii(text: str) -> str:
    """The text in ASCII: our own signs in other ones, anything else as Python escapes it."""
    return "".join(_spelled(c) for c in text)


def spell_out(stream: TextIO) -> None:
    """From now on the stream takes any text; in ASCII alone where that is wanted."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is None:
        return
    codecs.register_error(ERRORS, _replaced)
    if wants_ascii():
        reconfigure(encoding="ascii", errors=ERRORS)
    else:
        reconfigure(errors=ERRORS)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return in_ascii(error.object[error.start : error.end]), error.end


def _spelled(c: str) -> str:
    return c if c.isascii() else SIGNS.get(c) or c.encode("ascii", "backslashreplace").decode()
