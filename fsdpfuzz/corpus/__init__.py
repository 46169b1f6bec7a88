"""Saved cases and known findings: data only, read strictly, written whole or not at all."""

from __future__ import annotations

from fsdpfuzz.corpus._entry import (
    Entry,
    Found,
    find_entries,
    parse_entry,
    read_entry,
    write_entry,
)
from fsdpfuzz.corpus._known import Known, KnownFinding, Ledger, known_document
from fsdpfuzz.corpus._maintain import (
    Added,
    Checked,
    Removal,
    Row,
    add_cases,
    check_known,
    describe,
    prunable,
    rows,
)
from fsdpfuzz.corpus._seeds import seed_entries, write_seeds
from fsdpfuzz.corpus._store import Store, slug
from fsdpfuzz.corpus._write import write_atomically

__all__ = [
    "Added",
    "Checked",
    "Entry",
    "Found",
    "Known",
    "KnownFinding",
    "Ledger",
    "Removal",
    "Row",
    "Store",
    "add_cases",
    "check_known",
    "describe",
    "find_entries",
    "known_document",
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
