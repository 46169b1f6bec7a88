"""One saved case with where it came from: a JSON file that a person can read and edit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fsdpfuzz.case import (
    MAX_FILE_BYTES,
    SCHEMA,
    CaseSpec,
    as_document,
    decode,
    decode_strictly,
    digest,
    read_bounded,
)
from fsdpfuzz.corpus._write import write_atomically
from fsdpfuzz.errors import CaseError, UsageError, one_line
from fsdpfuzz.verdict import Finding

_SHORT = 2_000
_LONG = 20_000
Text = Annotated[str, Meta(max_length=_LONG)]
Short = Annotated[str, Meta(max_length=_SHORT)]

Migration = Callable[[dict[str, Any]], dict[str, Any]]

MIGRATIONS: dict[int, Migration] = {}
"""From an older schema to the next: version read → function over the whole document.

A document is an envelope with its case under ``case``, or a bare case.
"""

KNOWN_FOLDER = "known"
"""Name of the folder, inside a corpus, that holds known defects."""
IN_FLIGHT = "inflight-"
"""How the names of files begin that hold a case under way."""
RESULT = "result.json"
"""Name of the file with a run's result, which lies in the run's folder beside its cases."""


class Found(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
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
    finding: Finding | None = None
    """The finding itself, of which ``key`` and ``message`` are renderings."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A case, how it was found if it was, and the document that it restates if it does."""

    case: CaseSpec
    found: Found | None = None
    origin: str = ""
    defect: str = ""
    """The id of the known defect of which this is the smallest case; empty for others."""

    @property
    def digest(self) -> str:
        """The case's digest."""
        return digest(self.case)


class _Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: int = SCHEMA
    case: msgspec.Raw
    found: Found | None = None
    origin: Short = ""


def parse_entry(data: bytes, source: str) -> Entry:
    """An entry from the text of a file; :class:`CaseError` naming file and path.

    A bare case document is an entry without provenance. Documents of an older schema are
    brought up to date by `MIGRATIONS`.
    """
    document = decode_strictly(data, dict[str, Any], source)
    current = _migrated(document, source)
    if current is not document:
        document, data = current, msgspec.json.encode(current)
    if "case" not in document:
        return Entry(case=decode(data, source=source))
    defect = ""
    if "shows" in document:
        # A known defect: its smallest case stands where a saved case has its own.
        defect = Path(source).stem
        document = {"case": document["case"], "origin": f"known defect {defect}"}
        data = msgspec.json.encode(document)
    envelope = decode_strictly(data, _Envelope, source)
    try:
        case = decode(bytes(envelope.case), source=source)
    except CaseError as error:
        inside = f"$.case{error.path.removeprefix('$')}"
        raise CaseError(error.reason, path=inside, source=source) from None
    return Entry(case=case, found=envelope.found, origin=envelope.origin, defect=defect)


def read_entry(path: Path) -> Entry:
    """The entry in a file of at most 1 MiB; :class:`CaseError` naming file and path."""
    return parse_entry(read_bounded(path), os.fspath(path))


def write_entry(path: Path, entry: Entry, *, durable: bool = True) -> None:
    """Writes the whole file or nothing, even when the process is killed in between.

    Texts of the provenance that are longer than a reader accepts are cut.
    """
    document: dict[str, Any] = {"schema": SCHEMA}
    if entry.origin:
        document["origin"] = _fitting(entry.origin, _SHORT)
    if entry.found is not None:
        document["found"] = _provenance(entry.found)
    case = as_document(entry.case)
    case.pop("schema")
    document["case"] = case
    packed = msgspec.json.encode(document)
    text = msgspec.json.format(packed, indent=2) + b"\n"
    write_atomically(path, text if len(text) <= MAX_FILE_BYTES else packed, durable=durable)


def find_entries(paths: Iterable[Path]) -> Iterator[Path]:
    """The case files among ``paths``: files as named, folders searched through, sorted.

    In folders known defects, hidden files, results of runs and cases under way are passed over.
    A file that is met twice is given once. :class:`UsageError` for a path that does not exist
    or that by its name holds no case.
    """
    seen: set[Path] = set()
    for path in paths:
        _must_exist(path)
        for file in _below(path) if path.is_dir() else (_named(path),):
            real = file.resolve()
            if real not in seen:
                seen.add(real)
                yield file


def _migrated(document: dict[str, Any], source: str) -> dict[str, Any]:
    version = document.get("schema", SCHEMA)
    if type(version) is not int:
        raise CaseError(f"{version!r} is no schema version", path="$.schema", source=source)
    if version > SCHEMA:
        raise CaseError(
            f"schema {version} is newer than the newest that this fsdpfuzz reads, {SCHEMA}; "
            "update fsdpfuzz",
            path="$.schema",
            source=source,
        )
    while version < SCHEMA:
        step = MIGRATIONS.get(version)
        if step is None:
            raise CaseError(
                f"there is no schema {version}; this fsdpfuzz reads {SCHEMA}"
                + "".join(f", {older}" for older in sorted(MIGRATIONS, reverse=True)),
                path="$.schema",
                source=source,
            )
        try:
            document = {**step(document), "schema": version + 1}
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CaseError(
                f"cannot be brought from schema {version} to {version + 1}: "
                f"{type(error).__name__}: {error}",
                source=source,
            ) from None
        version += 1
        case = document.get("case")
        if isinstance(case, dict) and "schema" in case:
            document["case"] = {**case, "schema": version}
    return document


def _below(folder: Path) -> list[Path]:
    return sorted(
        file
        for file in folder.rglob("*.json")
        if not file.name.startswith(IN_FLIGHT)
        and file.name != RESULT
        and not any(
            part.startswith(".") or part == KNOWN_FOLDER for part in file.relative_to(folder).parts
        )
        and file.is_file()
    )


def _must_exist(path: Path) -> None:
    try:
        exists = path.exists()
    except OSError as error:
        raise UsageError(one_line(f"{path}: cannot be read: {error.strerror}")) from None
    if not exists:
        raise UsageError(one_line(f"{path}: no such file or folder"))


def _named(path: Path) -> Path:
    if path.suffix != ".json":
        raise UsageError(one_line(f"{path}: saved cases are .json files"))
    return path


def _provenance(found: Found) -> dict[str, Any]:
    made: dict[str, Any] = _cut(msgspec.to_builtins(found), {"message": _LONG})
    return made


def _cut(value: Any, limits: dict[str, int], limit: int = _SHORT) -> Any:
    """Plain data with every text in it as long as a reader accepts."""
    if isinstance(value, dict):
        return {name: _cut(inner, limits, limits.get(name, limit)) for name, inner in value.items()}
    return _fitting(value, limit) if isinstance(value, str) else value


def _fitting(text: str, limit: int) -> str:
    # A message may hold bytes that were no UTF-8 (lone surrogates), which JSON cannot carry.
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= limit else text[: limit - 1] + "…"
