"""The folder of known defects: read and checked, written whole or not at all."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path

import msgspec
from packaging.version import InvalidVersion, Version

from fsdpfuzz.case import (
    FEATURES,
    PARAMETER_FEATURES,
    UNIT_FEATURES,
    CaseSpec,
    Feature,
    decode,
    decode_strictly,
    read_bounded,
)
from fsdpfuzz.corpus import write_atomically
from fsdpfuzz.errors import CaseError, UsageError, one_line
from fsdpfuzz.invariants import REGISTRY
from fsdpfuzz.known.defect import Defect, ways
from fsdpfuzz.known.sieve import Sieve
from fsdpfuzz.reduce import simpler
from fsdpfuzz.verdict import Finding

_ID = re.compile(r"[a-z0-9-]{3,80}")
ID_WORDS = "3 to 80 lower-case letters, digits and hyphens"
_EXITS = 2


class Known:
    """The known defects of a folder, by id."""

    def __init__(self, defects: Mapping[str, Defect] | None = None) -> None:
        self.defects = dict(defects or {})
        self._shown: Counter[str] = Counter()
        self._applying: dict[tuple[str, str], dict[str, Defect]] = {}
        self._sieves: dict[tuple[str, str], Sieve] = {}

    @classmethod
    def load(cls, path: Path) -> Known:
        """Reads a folder of defects, or the file of one.

        :class:`CaseError` naming file and place of what is wrong, :class:`UsageError` for a
        path that is neither.
        """
        return cls({file.stem: read_defect(file) for file in defect_files(path)})

    def minimal(self, name: str) -> CaseSpec:
        """The smallest case that shows a defect."""
        return decode(bytes(self.defects[name].case), source=f"known defect {name}")

    def refused(self, name: str) -> Iterator[tuple[CaseSpec, Finding]]:
        """The findings that a defect must not explain, each with its case."""
        for other in self.defects[name].refuses:
            case = self.minimal(name)
            if other.case:
                case = decode(msgspec.json.encode(other.case), source=f"known defect {name}")
            yield case, other.finding

    def applying(self, *, torch: str, backend: str) -> Mapping[str, Defect]:
        """The defects that this torch version has on this backend, by id."""
        here = (torch, backend)
        if here not in self._applying:  # asked for each case that is drawn
            self._applying[here] = {
                name: defect
                for name, defect in self.defects.items()
                if defect.applies(torch=torch, backend=backend)
            }
        return self._applying[here]

    def covering(self, case: CaseSpec, *, torch: str, backend: str) -> tuple[str, ...]:
        """Ids of the defects of which a case has here what they need."""
        here = (torch, backend)
        if here not in self._sieves:
            found = self.applying(torch=torch, backend=backend)
            self._sieves[here] = Sieve({name: defect.when for name, defect in found.items()})
        return self._sieves[here].covering(ways(case))

    def showing(self, case: CaseSpec, *, torch: str, backend: str) -> tuple[str, ...]:
        """Those of `covering` that show at an operation which the case has.

        Without one the case is worth a run, though what it shows may yet follow from them.
        """
        found = self.covering(case, torch=torch, backend=backend)
        return tuple(name for name in found if self.defects[name].may_show(case))

    def exits(self, case: CaseSpec, name: str) -> Iterator[CaseSpec]:
        """Plainer cases that a defect does not cover any more, the nearest first, at most two.

        A finding that shows in one of them is another defect; one that goes away follows from
        this one.
        """
        plainer = (neighbour.case for neighbour in simpler(case))
        return islice((c for c in plainer if not self.defects[name].covers(c)), _EXITS)

    def match(self, case: CaseSpec, finding: Finding, *, torch: str, backend: str) -> str | None:
        """The id of the first defect that explains a finding, or None."""
        found = self.applying(torch=torch, backend=backend)
        name = next(
            (name for name, defect in found.items() if defect.explains(case, finding)), None
        )
        if name is not None:
            self._shown[name] += 1
        return name

    def on_one_of(self, torch: str, other: str, *, backend: str) -> Iterator[CaseSpec]:
        """The smallest cases of the defects that only one of two torch versions has."""
        for name, defect in self.defects.items():
            here = defect.applies(torch=torch, backend=backend)
            if here != defect.applies(torch=other, backend=backend):
                yield self.minimal(name)

    def silent(self, *, torch: str, backend: str) -> tuple[str, ...]:
        """Ids of the defects that should show here and explained nothing so far."""
        found = self.applying(torch=torch, backend=backend)
        return tuple(name for name in found if not self._shown[name])


def is_id(text: str) -> bool:
    """Whether a defect can be called so."""
    return _ID.fullmatch(text) is not None


def defect_files(path: Path) -> list[Path]:
    """The files of a folder of defects, or the one that is named; :class:`UsageError` if none."""
    if path.is_dir():
        # By id: a name that goes on comes after the shorter one, as everywhere else.
        return sorted(path.glob("*.json"), key=lambda file: file.stem)
    if not path.is_file():
        raise UsageError(one_line(f"{path}: no such file or folder of known defects"))
    return [path]


def read_defect(path: Path) -> Defect:
    """Reads and checks one file; :class:`CaseError` naming file and place."""
    if not is_id(path.stem):
        reason = f"the name is the id: {ID_WORDS}"
        raise CaseError(reason, source=os.fspath(path))
    return defect_in(path)


def defect_in(path: Path) -> Defect:
    """The defect in a file of whatever name, checked; :class:`CaseError` naming file and place."""
    return _defect(read_bounded(path), os.fspath(path))


# By content: a run and its report read the same hundreds of files, each of which takes
# milliseconds to check.
@lru_cache(maxsize=1024)
def _defect(data: bytes, source: str) -> Defect:
    defect = decode_strictly(data, Defect, source)
    check_defect(defect, source)
    return defect


def write_defect(path: Path, defect: Defect) -> None:
    """Writes the whole file or nothing; :class:`UsageError` for one that is there.

    What could not be read again is not written: `check_defect`.
    """
    # Before anything is on disk: a file that cannot be read again stops every run that loads it.
    check_defect(defect, os.fspath(path))
    text = msgspec.json.format(msgspec.json.encode(defect), indent=2) + b"\n"
    write_atomically(path, text, replace=False)


def check_defect(defect: Defect, source: str) -> None:
    """:class:`CaseError`, with the place in the file, for what an entry cannot mean.

    An entry that does not cover its own case, or not explain its own finding, says too little
    to be used; one that explains a finding that it must not says too much.
    """
    for kind, known in (
        ("case", FEATURES),
        ("unit", UNIT_FEATURES),
        ("parameter", PARAMETER_FEATURES),
    ):
        _check_features(getattr(defect.when, kind), kind, known, source)
    for i, shown in enumerate(defect.shows):
        at = f"$.shows[{i}]"
        for name in shown.invariant:
            _check_invariant(name, f"{at}.invariant", source)
        if shown.text:
            _check_pattern(shown.text, f"{at}.text", source)
        # An invariant alone would take each other defect that breaks it for this one.
        if not shown.says_more:
            reason = "it fits whatever breaks the invariant: say more"
            raise CaseError(reason, path=at, source=source)
    for at, release in defect.releases():
        _check_release(release, at, source)
    case = _case(bytes(defect.case), "$.case", source)
    if not defect.covers(case):
        raise CaseError("the entry does not cover its own case", path="$.when", source=source)
    _check_invariant(defect.finding.invariant, "$.finding.invariant", source)
    if not defect.explains(case, defect.finding):
        reason = "the entry does not explain its own finding"
        raise CaseError(reason, path="$.shows", source=source)
    for i, other in enumerate(defect.refuses):
        at = f"$.not[{i}]"
        _check_invariant(other.finding.invariant, f"{at}.finding.invariant", source)
        own = case
        if other.case:
            own = _case(msgspec.json.encode(other.case), f"{at}.case", source)
        if defect.explains(own, other.finding):
            reason = f"the entry explains what it must not: {other.why}"
            raise CaseError(reason, path=at, source=source)


def _case(data: bytes, at: str, source: str) -> CaseSpec:
    try:
        return decode(data, source=source)
    except CaseError as error:
        inside = f"{at}{error.path.removeprefix('$')}"
        raise CaseError(error.reason, path=inside, source=source) from None


def _check_invariant(name: str, at: str, source: str) -> None:
    if name not in REGISTRY:
        reason = f"there is no invariant {name!r}; there is {', '.join(sorted(REGISTRY))}"
        raise CaseError(reason, path=at, source=source)


def _check_features(
    asked: Mapping[str, tuple[str, ...]], kind: str, known: Mapping[str, Feature], source: str
) -> None:
    at = f"$.when.{kind}"
    for name, values in asked.items():
        if name not in known:
            reason = f"a {kind} has no feature {name!r}; it has {', '.join(sorted(known))}"
            raise CaseError(reason, path=at, source=source)
        feature = known[name]
        for value in values:
            if not feature.open and value not in feature.values:
                reason = f"{name} is never {value!r}; it can be {', '.join(feature.values)}"
                raise CaseError(reason, path=f"{at}.{name}", source=source)


def _check_release(text: str, at: str, source: str) -> None:
    try:
        Version(text)
    except InvalidVersion:
        raise CaseError(f"{text!r} is no version of torch", path=at, source=source) from None


def _check_pattern(text: str, at: str, source: str) -> None:
    try:
        pattern = re.compile(text, re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        raise CaseError(f"not a regular expression: {error}", path=at, source=source) from None
    # In what no message says; an empty one is a text like any other, as of a bare assertion.
    if pattern.search("\0"):
        raise CaseError("it fits any text: say more", path=at, source=source)
