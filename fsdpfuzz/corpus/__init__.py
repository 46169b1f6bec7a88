"""Saved cases and known findings: data only, read strictly, written whole or not at all."""

from __future__ import annotations

from fsdpfuzz.corpus._entry import (
    Entry,
    Found,
    find_entries,
    parse_entry,
    read_entry,
    write_atomically,
    write_entry,
)
from fsdpfuzz.corpus._known import Known, KnownFinding, Ledger, known_document
from fsdpfuzz.corpus._store import Store, slug

__all__ = [
    "Entry",
    "Found",
    "Known",
    "KnownFinding",
    "Ledger",
    "Store",
    "find_entries",
    "known_document",
    "parse_entry",
    "read_entry",
    "slug",
    "write_atomically",
    "write_entry",
]
