"""One saved case with where it came from: a JSON file that a person can read and edit."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fsdpfuzz.errors import CaseError, UsageError
from fsdpfuzz.spec import SCHEMA, CaseSpec, as_document, decode, digest, read_bounded

Text = Annotated[str, Meta(max_length=20_000)]
Short = Annotated[str, Meta(max_length=500)]

MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""From an older schema to the next: version read → function over the whole document."""

KNOWN_NAME = "known.json"


class Found(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a finding came about."""

    key: Short
    message: Text
    property: Short
    torch: Short
    backend: Short
    world_size: Annotated[int, Meta(ge=1, le=8)]
    date: Short
    seed: int
    shrink_steps: Annotated[int, Meta(ge=0)] = 0
    rate: Short = ""
    """``3 of 10`` for a finding that does not show each time."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A case, how it was found if it was, and the document that it restates if it does."""

    case: CaseSpec
    found: Found | None = None
    origin: str = ""

    @property
    def digest(self) -> str:
        """The case's digest."""
        return digest(self.case)


class _Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: int
    case: msgspec.Raw
    found: Found | None = None
    origin: Short = ""


def parse_entry(data: bytes, source: str) -> Entry:
    """An entry from the text of a file; :class:`CaseError` naming file and path.

    A bare case document is an entry without provenance.
    """
    document = _document(data, source)
    version = document.get("schema", SCHEMA)
    while isinstance(version, int) and version in MIGRATIONS:
        document = MIGRATIONS[version](document)
        data = msgspec.json.encode(document)
        version = document.get("schema", SCHEMA)
    if "case" not in document:
        return Entry(case=decode(data, source=source))
    if version != SCHEMA:
        raise CaseError(
            f"schema {version!r}, but this version reads {SCHEMA} and older",
            path="$.schema",
            source=source,
        )
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `")
        raise CaseError(reason, path=path.rstrip("`") or "$", source=source) from None
    try:
        case = decode(bytes(envelope.case), source=source)
    except CaseError as error:
        inside = f"$.case{error.path.removeprefix('$')}"
        raise CaseError(error.reason, path=inside, source=source) from None
    return Entry(case=case, found=envelope.found, origin=envelope.origin)


def read_entry(path: Path) -> Entry:
    """The entry in a file of at most 1 MiB; :class:`CaseError` naming file and path."""
    return parse_entry(read_bounded(path), os.fspath(path))


def write_entry(path: Path, entry: Entry, *, durable: bool = True) -> None:
    """Writes the whole file or nothing, even when the process is killed in between."""
    document: dict[str, Any] = {"schema": SCHEMA}
    if entry.origin:
        document["origin"] = entry.origin
    if entry.found is not None:
        document["found"] = {
            name: value for name, value in msgspec.to_builtins(entry.found).items() if value != ""
        }
    case = as_document(entry.case)
    case.pop("schema")
    document["case"] = case
    text = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    write_atomically(path, text, durable=durable)


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replaces ``path`` by ``data`` in one step; ``durable`` also outlives a power failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def find_entries(paths: Iterable[Path]) -> Iterator[Path]:
    """The case files among ``paths``: files as named, folders searched through, sorted.

    `known.json` and hidden files are passed over in folders. :class:`UsageError` for a path
    that does not exist.
    """
    for path in paths:
        if path.is_dir():
            yield from sorted(
                file
                for file in path.rglob("*.json")
                if file.name != KNOWN_NAME and not file.name.startswith(".")
            )
        elif path.exists():
            yield path
        else:
            raise UsageError(f"{path}: no such file or folder")


def _document(data: bytes, source: str) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CaseError(f"not valid JSON: {error}", source=source) from None
    except RecursionError:
        raise CaseError("nested too deeply to be a case", source=source) from None
    if not isinstance(document, dict):
        raise CaseError(f"an object is expected, not {type(document).__name__}", source=source)
    return document
