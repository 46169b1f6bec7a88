"""One known defect as data: what shows it, and what it must not be taken for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from packaging.version import InvalidVersion, Version

from fsdpfuzz.case import (
    Anatomy,
    CaseSpec,
    Op,
    anatomy,
    case_features,
    parameter_features,
    unit_features,
    variants,
)
from fsdpfuzz.case.names import parameter_in
from fsdpfuzz.verdict import Finding
from fsdpfuzz.wire import Backend

Value = Annotated[str, Meta(max_length=200)]
Values = Annotated[tuple[Value, ...], Meta(min_length=1)]
Release = Annotated[str, Meta(pattern=r"^\d+\.\d+(\.\d+)?[0-9a-z.]*$", max_length=40)]


TO_WRITE = "(to be written)"
"""How a text begins that a person has to replace."""


class _Strict(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    pass


class Predicate(_Strict, frozen=True, kw_only=True):
    """Features to the values that they may have: of the case, of a unit, of a parameter.

    A case is covered if it has the features asked of it, and a unit with those asked of a
    unit, and (in that unit, if one is asked for) a parameter with those asked of a parameter.
    """

    case: Annotated[dict[str, Values], Meta(min_length=1)]
    unit: dict[str, Values] = {}
    parameter: dict[str, Values] = {}

    def covers(self, a: Anatomy) -> bool:
        """Whether a case can show it at all."""
        return _have(case_features(a), self.case) and self.meets(a)

    def meets(self, a: Anatomy) -> bool:
        """Whether a case has a unit and a parameter that are meant, where some are asked for."""
        if self.parameter:
            return any(self.has_parameter(a, fqn) for fqn in a.by_fqn)
        return not self.unit or any(self.has_unit(a, path) for path in a.units)

    def has_unit(self, a: Anatomy, path: str | None) -> bool:
        """Whether a unit is one of those meant."""
        if path is None or path not in a.options:
            return False
        return _have(unit_features(a, path), self.unit)

    def has_parameter(self, a: Anatomy, fqn: str) -> bool:
        """Whether a parameter is one of those meant, and its unit too."""
        if fqn not in a.by_fqn or not _have(parameter_features(a, fqn), self.parameter):
            return False
        return not self.unit or self.has_unit(a, a.owners[fqn])


class Pattern(_Strict, frozen=True, kw_only=True):
    """One way in which a defect shows. What is left empty may be anything."""

    invariant: Values
    names: Literal["case", "unit", "parameter"] = "case"
    """What the finding must name: a unit, or a parameter, that the predicate means."""
    kind: tuple[Value, ...] = ()
    detail: tuple[Value, ...] = ()
    operation: tuple[Value, ...] = ()
    """The operation at which it shows: its kind, or how its words begin (``state_dict full``)."""
    observed: tuple[Value, ...] = ()
    exception: tuple[Value, ...] = ()
    """Types of the exception."""
    place: tuple[Value, ...] = ()
    """Where it was raised: ``file:function``, or the file alone."""
    text: Annotated[str, Meta(max_length=500)] = ""
    """A regular expression, searched for in the exception's own text."""
    exitcode: tuple[int, ...] = ()
    """Of a process that ended; negative for a signal."""

    @property
    def says_more(self) -> bool:
        """Whether it says more than which invariants are broken."""
        return msgspec.structs.replace(self, invariant=("any",)) != Pattern(invariant=("any",))

    def fits(self, a: Anatomy, predicate: Predicate, finding: Finding) -> bool:
        """Whether a finding on the case shows the defect in this way."""
        return (
            finding.invariant in self.invariant
            and _among(finding.kind, self.kind)
            and _among(finding.detail, self.detail)
            and self._at_operation(a, finding)
            and _among(finding.observed, self.observed)
            and self._names(a, predicate, finding)
            and self._failed(finding)
        )

    def _at_operation(self, a: Anatomy, finding: Finding) -> bool:
        program = a.case.program
        at = program[finding.op : finding.op + 1] if finding.op >= 0 else ()
        return _among(finding.operation, self.operation) or any(map(self.happens_at, at))

    def happens_at(self, op: Op) -> bool:
        """Whether an operation is one of those that are told."""
        # What words say of an option at its default is nothing, so more may follow.
        begins = [op.kind(), *accumulate(op.words().split(), "{} {}".format)]
        return not set(begins).isdisjoint(self.operation)

    def _names(self, a: Anatomy, predicate: Predicate, finding: Finding) -> bool:
        match self.names:
            case "case":
                return True
            case "unit":
                return predicate.has_unit(a, finding.unit)
            case "parameter":
                named = parameter_in(finding.name)
                # Of the second name that a module brings along no features are told.
                name = a.brought_ties.get(named, named)
                own = {name, *(t for t, s in a.source.items() if s == name)}
                return any(predicate.has_parameter(a, fqn) for fqn in own)

    def _failed(self, finding: Finding) -> bool:
        failure = finding.failure
        if failure is None:
            return not (self.exception or self.place or self.text or self.exitcode)
        return (
            _among(failure.type, self.exception)
            and (not self.place or any(_at(failure.place, place) for place in self.place))
            and (not self.text or re.search(self.text, failure.text, re.DOTALL) is not None)
            and (not self.exitcode or failure.exitcode in self.exitcode)
        )


class MustNot(_Strict, frozen=True, kw_only=True):
    """Another finding, of a defect that is invented, which the entry must leave alone."""

    why: Annotated[str, Meta(min_length=10, max_length=500)]
    finding: Finding
    case: dict[str, Any] = {}
    """The case it was found on; the defect's own minimal case if left out."""


class Defect(_Strict, frozen=True, kw_only=True, rename={"refuses": "not"}):
    """What is known of one defect. Its id is the name of its file."""

    schema: Literal[1] = 1
    title: Annotated[str, Meta(min_length=10, max_length=120)]
    """What FSDP does wrong, in a few words."""
    reason: Annotated[str, Meta(min_length=20, max_length=4000)]
    link: Annotated[str, Meta(pattern=r"^(https?://\S+)?$", max_length=500)] = ""
    way_around: Annotated[str, Meta(max_length=1000)] = ""
    """What a team can do until it is mended."""
    date: Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    seen: Annotated[
        dict[Backend, Annotated[tuple[Release, ...], Meta(min_length=1)]],
        Meta(min_length=1),
    ]
    """For each backend the torch releases on which it was seen."""
    gone: Release | None = None
    """The first release that no longer has it."""
    when: Predicate
    shows: Annotated[tuple[Pattern, ...], Meta(min_length=1)]
    case: msgspec.Raw
    """The smallest case that shows it, as a case document."""
    finding: Finding
    """What that case shows."""
    refuses: Annotated[tuple[MustNot, ...], Meta(min_length=2)]

    @property
    def unwritten(self) -> tuple[str, ...]:
        """The fields that a person has not filled in yet."""
        missing = ["reason"] if self.reason.startswith(TO_WRITE) else []
        missing += [name for name in ("link", "way_around") if not getattr(self, name)]
        return tuple(missing)

    def releases(self) -> Iterator[tuple[str, str]]:
        """The torch versions that it names, each with its place in the file."""
        for backend, seen in self.seen.items():
            yield from ((f"$.seen.{backend}[{i}]", text) for i, text in enumerate(seen))
        if self.gone is not None:
            yield "$.gone", self.gone

    def applies(self, *, torch: str, backend: str) -> bool:
        """Whether this torch version on this backend has it.

        Versions from the oldest on which it was seen, on any backend, up to the one in which
        it was gone. Backends where it was never seen do not have it.
        """
        if backend not in self.seen:
            return False
        version = _version(torch)
        if version is None:
            return False
        # From the oldest on, gaps included: releases between two that have it were mostly never
        # tried.
        oldest = min(v for releases in self.seen.values() for v in map(Version, releases))
        return version >= oldest and (self.gone is None or version < Version(self.gone))

    def covers(self, case: CaseSpec) -> bool:
        """Whether a case, or one of its variants, can show it."""
        return any(map(self.when.covers, ways(case)))

    def may_show(self, case: CaseSpec) -> bool:
        """Whether a case has an operation at which it shows; any will do where none is told."""
        operations = [op for run in variants(case).values() for op in run.program]
        return any(
            not shown.operation or any(map(shown.happens_at, operations)) for shown in self.shows
        )

    def explains(self, case: CaseSpec, finding: Finding) -> bool:
        """Whether a finding on a case is this defect."""
        return any(
            self.when.covers(a) and any(shown.fits(a, self.when, finding) for shown in self.shows)
            for a in _runs(case, finding)
        )


def ways(case: CaseSpec) -> tuple[Anatomy, ...]:
    """The anatomies under which a case is run: of its variants, too, and as they are in the end."""
    runs = map(anatomy, variants(case).values())
    return tuple(dict.fromkeys(a for run in runs for a in (run, run.last)))


def _runs(case: CaseSpec, finding: Finding) -> Iterator[Anatomy]:
    """The run that showed a finding; both, where a variant was compared with the case."""
    runs = variants(case)
    own = runs.get(finding.variant or "case")
    if own is not None:
        first = anatomy(own)
        yield first
        later = first.at(finding.op) if finding.op >= 0 else first.last
        if later is not first:
            yield later
    # Either of both may be what is wrong.
    if finding.variant and finding.invariant == "twins_agree":
        yield anatomy(runs["case"])


def _have(found: Mapping[str, str], wanted: Mapping[str, tuple[str, ...]]) -> bool:
    return all(found.get(name) in values for name, values in wanted.items())


def _among(value: str, wanted: tuple[str, ...]) -> bool:
    return not wanted or value in wanted


def _at(place: str, wanted: str) -> bool:
    return place == wanted or place.partition(":")[0] == wanted


@lru_cache(maxsize=64)
def _version(text: str) -> Version | None:
    try:
        # ``2.13.0+cpu`` and a nightly build of 2.15 count as the release they are of.
        return Version(Version(text).base_version)
    except InvalidVersion:
        return None
