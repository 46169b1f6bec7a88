"""Looking after saved cases: list, show, add, prune."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from fsdpfuzz.case import encode, features, pretty
from fsdpfuzz.corpus._entry import Entry, Found, find_entries, read_entry, write_entry
from fsdpfuzz.corpus._store import slug
from fsdpfuzz.errors import CaseError, one_line


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a corpus. ``entry`` is None where ``fault`` says why it cannot be read."""

    path: Path
    entry: Entry | None = None
    fault: str = ""


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a case that was to be added; ``new`` is False if it was there before."""

    source: Path
    path: Path
    new: bool


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a corpus does not need, and the one that says the same or more."""

    path: Path
    reason: str
    instead: Path


def rows(paths: Iterable[Path]) -> Iterator[Row]:
    """Every case file among ``paths``, readable or not, in the order of `find_entries`."""
    for path in find_entries(paths):
        try:
            yield Row(path=path, entry=read_entry(path))
        except CaseError as error:
            yield Row(path=path, fault=str(error))


def describe(entry: Entry) -> str:
    """Provenance, options and the case itself, for a person."""
    lines = [f"digest      {entry.digest}"]
    if entry.origin:
        lines.append(f"restates    {one_line(entry.origin)}")
    if entry.found is not None:
        lines += [
            f"{name.replace('_', ' '):<11} {one_line(str(value))}"
            for name, value in msgspec.structs.asdict(entry.found).items()
            # The message is a rendering of the finding.
            if value != "" and name != "finding"
        ]
    lines += ["", "options"]
    lines += [f"  {name:<22} {value}" for name, value in features(entry.case).items()]
    return "\n".join([*lines, "", pretty(entry.case)])


def add_cases(paths: Iterable[Path], folder: Path, *, origin: str = "") -> list[Added]:
    """Copies the cases of ``paths`` into ``folder``, which gets each case once.

    All are read before the first is written, so a bad file (:class:`CaseError`) changes
    nothing. ``origin`` replaces the origin of those that are added.
    """
    present = {row.entry.digest: row.path for row in _readable(folder)}
    entries = [(path, read_entry(path)) for path in find_entries(paths)]
    added = []
    for source, entry in entries:
        new = entry.digest not in present
        if new:
            kept = Entry(case=entry.case, found=entry.found, origin=origin or entry.origin)
            target = folder / f"{_name(kept)}-{entry.digest}.json"
            write_entry(target, kept)
            present[entry.digest] = target
        added.append(Added(source=source, path=present[entry.digest], new=new))
    return added


def prunable(folder: Path) -> list[Removal]:
    """The files of ``folder`` that can go: the caller removes them.

    These are copies of a case for the same finding, and cases of a finding that was shrunk
    to a smaller one on the same torch and backend. Cases with an origin stay, as do
    unreadable files and, of a finding that shows each time, everything larger than a case
    that shows it only sometimes.
    """
    removals: dict[Path, Removal] = {}
    kept: dict[tuple[str, ...], _Read] = {}
    for row in sorted(_readable(folder), key=_worth):
        same = (row.entry.digest, *_series(row.entry.found))
        best = kept.setdefault(same, row)
        if best is not row:
            removals[row.path] = Removal(path=row.path, reason="the same case", instead=best.path)
    for row in kept.values():
        smaller = _shrunk_to(row, kept.values())
        if smaller is not None:
            removals[row.path] = Removal(
                path=row.path, reason="shrunk to a smaller case", instead=smaller.path
            )
    return [_settled(removals[path], removals) for path in sorted(removals)]


class _Read(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    entry: Entry


def _readable(folder: Path) -> list[_Read]:
    if not folder.is_dir():
        return []
    return [
        _Read(path=row.path, entry=row.entry) for row in rows([folder]) if row.entry is not None
    ]


def _key(entry: Entry) -> str:
    return entry.found.key if entry.found is not None else ""


def _name(entry: Entry) -> str:
    return slug(_key(entry) or entry.origin or "case")


def _worth(row: _Read) -> tuple[bool, bool, int, int, str]:
    """The best of several copies comes first."""
    found = row.entry.found
    rare, steps = (bool(found.rate), found.shrink_steps) if found is not None else (False, 0)
    return (not row.entry.origin, rare, -steps, len(row.path.parts), str(row.path))


def _shrunk_to(row: _Read, others: Iterable[_Read]) -> _Read | None:
    found = row.entry.found
    if found is None or row.entry.origin:
        return None
    size = _size(row)
    smaller = [
        other
        for other in others
        if other.entry.found is not None
        and other.entry.found.shrink_steps > 0
        and _series(other.entry.found) == _series(found)
        and _size(other) < size
        and (not other.entry.found.rate or found.rate)
    ]
    return min(smaller, key=_size, default=None)


def _series(found: Found | None) -> tuple[str, ...]:
    return () if found is None else (found.key, found.torch, found.backend)


def _size(row: _Read) -> tuple[int, int]:
    return (len(encode(row.entry.case)), row.entry.case.world_size)


def _settled(removal: Removal, removals: dict[Path, Removal]) -> Removal:
    """The removal, pointing at a file that stays."""
    instead = removal.instead
    while instead in removals:
        instead = removals[instead].instead
    return Removal(path=removal.path, reason=removal.reason, instead=instead)
