"""Saved cases: data only, read strictly, written whole or not at all."""

from __future__ import annotations

from fsdpfuzz.corpus._entry import (
    RESULT,
    Entry,
    Found,
    find_entries,
    parse_entry,
    read_entry,
    write_entry,
)
from fsdpfuzz.corpus._maintain import (
    Added,
    Removal,
    Row,
    add_cases,
    describe,
    prunable,
    rows,
)
from fsdpfuzz.corpus._seeds import seed_entries, write_seeds
from fsdpfuzz.corpus._store import Store, slug
from fsdpfuzz.corpus._write import is_special, write_atomically

__all__ = [
    "RESULT",
    "Added",
    "Entry",
    "Found",
    "Removal",
    "Row",
    "Store",
    "add_cases",
    "describe",
    "find_entries",
    "is_special",
    "parse_entry",
    "prunable",
    "read_entry",
    "rows",
    "seed_entries",
    "slug",
    "write_atomically",
    "write_entry",
    "write_seeds",
]
