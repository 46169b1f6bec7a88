"""Findings that are understood: ``known.json``."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from fsdpfuzz.corpus._entry import decode_strictly
from fsdpfuzz.errors import CaseError
from fsdpfuzz.spec import CaseSpec, as_document, decode, features, read_bounded, variant_of
from fsdpfuzz.verdict import Finding

_MAX_BYTES = 8 << 20


_KEY = r"^[a-z_]+/[a-z_]+/([^*]+|fsdp[12][^*]*\*)$"
Key = Annotated[str, Meta(pattern=_KEY, max_length=2000)]
Value = Annotated[str, Meta(max_length=200)]


class KnownFinding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One finding with its reason.

    It explains a finding only if one of ``keys`` fits, every feature in ``when`` has one of
    the values given, ``message`` is found in the message, and torch version and backend
    fit. A broad entry would hide other defects, so ``when`` must name a feature.
    """

    id: Annotated[str, Meta(pattern=r"^[a-z0-9-]{3,80}$")]
    keys: Annotated[tuple[Key, ...], Meta(min_length=1)]
    """Keys of findings; a final ``*``, after the API at least, stands for any ending, as the
    same crash shows at several places."""
    when: Annotated[dict[str, Annotated[tuple[Value, ...], Meta(min_length=1)]], Meta(min_length=1)]
    """Feature name to the values it may take."""
    message: Annotated[str, Meta(max_length=1000)]
    """A regular expression, searched for; it does not fit an empty message."""
    torch: Annotated[str, Meta(max_length=100)]
    """Versions, as PEP 440 writes them: ``>=2.7,<2.14``."""
    backends: Annotated[tuple[str, ...], Meta(min_length=1)]
    reason: Annotated[str, Meta(min_length=20, max_length=4000)]
    link: Annotated[str, Meta(pattern=r"^(https?://\S+)?$", max_length=500)] = ""
    date: Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    case: msgspec.Raw
    """The smallest case that shows it, as a case document."""

    def matches(self, case: CaseSpec, finding: Finding, *, torch: str, backend: str) -> bool:
        """Whether it explains ``finding`` in ``case``, or in that twin of it which shows it."""
        return (
            self.applies(torch=torch, backend=backend)
            and re.search(self.message, finding.message) is not None
            and any(
                self._has_key(key) and _has_features(run, self.when)
                for run, key in _runs(case, finding)
            )
        )

    def applies(self, *, torch: str, backend: str) -> bool:
        """Whether it is about this torch version and this backend."""
        return backend in self.backends and _fits(torch, self.torch)

    def _has_key(self, key: str) -> bool:
        return any(
            key.startswith(own[:-1]) if own.endswith("*") else key == own for own in self.keys
        )

    def minimal(self) -> CaseSpec:
        """The smallest case that shows it."""
        return decode(bytes(self.case), source=f"known finding {self.id}")


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: Annotated[int, Meta(ge=1, le=1)]
    known: tuple[KnownFinding, ...]


class Known:
    """The entries of a known file, in its order."""

    def __init__(self, entries: tuple[KnownFinding, ...] = ()) -> None:
        self.entries = entries

    @classmethod
    def load(cls, path: Path) -> Known:
        """Reads and checks a file; :class:`CaseError` naming file and path."""
        source = os.fspath(path)
        data = read_bounded(path, _MAX_BYTES)
        entries = decode_strictly(data, _File, source).known
        seen: set[str] = set()
        for i, entry in enumerate(entries):
            _check(entry, f"$.known[{i}]", source)
            if entry.id in seen:
                raise CaseError(
                    f"id {entry.id!r} stands here twice", path=f"$.known[{i}].id", source=source
                )
            seen.add(entry.id)
        return cls(entries)

    def match(
        self, case: CaseSpec, finding: Finding, *, torch: str, backend: str
    ) -> KnownFinding | None:
        """The first entry that explains ``finding``, or None."""
        return next(
            (e for e in self.entries if e.matches(case, finding, torch=torch, backend=backend)),
            None,
        )


class Ledger:
    """Counts which entries explained something."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._counts: Counter[str] = Counter()

    def count(self, entry_id: str) -> None:
        """An entry explained a finding."""
        self._counts[entry_id] += 1

    def silent(self, *, torch: str, backend: str) -> tuple[str, ...]:
        """Entries that should show on this torch and backend and explained nothing."""
        return tuple(
            entry.id
            for entry in self._known.entries
            if not self._counts[entry.id] and entry.applies(torch=torch, backend=backend)
        )


def _runs(case: CaseSpec, finding: Finding) -> Iterator[tuple[CaseSpec, str]]:
    """What may have shown the finding, each with the key that it has without twins."""
    key, told = finding.key, finding.message
    ended = f"{key}:"  # the twin may be what the key ends with
    for twin in case.twins:
        named = f"/{case.api}:{twin.name}:"
        if named in ended or f"[{twin.name}:" in told:
            own = ended.replace(named, f"/{case.api}:", 1).removesuffix(":")
            yield variant_of(case, twin), own
            if finding.invariant != "twins_agree":
                return
    yield case, key


def known_document(entries: tuple[KnownFinding, ...]) -> bytes:
    """The text of a known file."""
    rows = []
    for entry in entries:
        row = {name: getattr(entry, name) for name in entry.__struct_fields__}
        row["case"] = as_document(entry.minimal())
        rows.append(row)
    text = msgspec.json.encode({"schema": 1, "known": rows})
    return msgspec.json.format(text, indent=2) + b"\n"


def _check(entry: KnownFinding, at: str, source: str) -> None:
    try:
        broad = re.compile(entry.message).search("") is not None
    except (re.error, OverflowError, RecursionError) as error:
        raise CaseError(
            f"{entry.message!r} is no regular expression: {error}",
            path=f"{at}.message",
            source=source,
        ) from None
    if broad:
        raise CaseError(
            f"{entry.message!r} fits any message and would hide other defects",
            path=f"{at}.message",
            source=source,
        )
    try:
        SpecifierSet(entry.torch)
    except InvalidSpecifier:
        raise CaseError(
            f"{entry.torch!r} names no versions; write for example '>=2.7,<2.14'",
            path=f"{at}.torch",
            source=source,
        ) from None
    try:
        case = entry.minimal()
    except CaseError as error:
        inside = f"{at}.case{error.path.removeprefix('$')}"
        raise CaseError(error.reason, path=inside, source=source) from None
    known = features(case)
    for name in entry.when:
        if name not in known:
            raise CaseError(
                f"there is no feature {name!r}; there are {', '.join(sorted(known))}",
                path=f"{at}.when",
                source=source,
            )
    if not _has_features(case, entry.when):
        raise CaseError("the entry's own case does not fit it", path=f"{at}.when", source=source)


def _has_features(case: CaseSpec, when: dict[str, tuple[str, ...]]) -> bool:
    own = features(case)
    return all(own.get(name) in values for name, values in when.items())


def _fits(version: str, specifier: str) -> bool:
    try:
        release = Version(Version(version).public)
    except InvalidVersion:
        return False
    return SpecifierSet(specifier, prereleases=True).contains(release)
