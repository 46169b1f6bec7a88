"""Hypothesis strategies for cases: one space, in which every dimension has a file of its name.

`cases` draws what is fuzzed; a property is a *focus*, which moves weights and takes nothing out
of reach. Every drawn case passes ``fsdpfuzz.case.check``, no strategy filters, and each says in
its docstring what it shrinks towards.
"""

from __future__ import annotations

if __name__ != "fsdpfuzz.strategies":
    raise ImportError(
        f"this folder is the package fsdpfuzz.strategies, but it was imported as {__name__!r}; "
        "write 'from fsdpfuzz import strategies' or 'import fsdpfuzz.strategies'",
        name=__name__,
    )

from fsdpfuzz.strategies.space import FOCUSES, cases

__all__ = ["FOCUSES", "cases"]
