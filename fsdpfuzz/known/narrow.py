"""The narrowest predicate that what was run allows: features that had to change for it to go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from fsdpfuzz.case import (
    FEATURES,
    ITERATION,
    MAX_RANKS,
    PARAMETER_FEATURES,
    UNIT_FEATURES,
    Anatomy,
    Api,
    CaseSpec,
    Dense,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    ZeroGrad,
    anatomy,
    features,
    parameter_features,
    unit_features,
    variants,
)
from fsdpfuzz.known.defect import Predicate
from fsdpfuzz.known.trials import Trial
from fsdpfuzz.verdict import Finding

Level = Literal["parameter", "unit", "case"]
LEVELS: tuple[Level, ...] = ("parameter", "unit", "case")
"""What features are of, the closest to the finding first."""
CLOSE = frozenset({"parameter", "unit"})
Atom = tuple[Level, str]
"""A feature by what it is of, and by its name."""

API: Atom = ("case", "api")
RANKS: Atom = ("case", "world_size")


@dataclass(frozen=True, slots=True)
class Focus:
    """The unit and the parameter that a predicate is to speak of; both may be None."""

    unit: str | None = None
    parameter: str | None = None


@dataclass(frozen=True, slots=True)
class Narrowed:
    """A predicate, and the trials without the finding that it covers all the same."""

    predicate: Predicate
    despite: tuple[Trial, ...]


def run_of(case: CaseSpec, variant: str) -> Anatomy:
    """The anatomy of what a variant of a case runs; of the case itself if it has none such."""
    return anatomy(variants(case).get(variant or "case", case))


def focus_of(a: Anatomy, finding: Finding) -> Focus:
    """The unit and the parameter that a finding names, as far as the case has them."""
    own = [finding.name, *(t for t, s in a.source.items() if s == finding.name)]
    parameter = next((fqn for fqn in own if fqn in a.by_fqn), None)
    if parameter is not None:
        return Focus(a.owners[parameter], parameter)
    return Focus(finding.unit if finding.unit in a.options else None)


def narrowest(case: CaseSpec, finding: Finding, trials: Sequence[Trial]) -> Narrowed:
    """The predicate that covers the case, and as few trials without the finding as can be.

    It asks for each feature that had to change for the finding to go away, close to the finding
    rather than of the case, and for what is unusual and was not seen to be otherwise.

    Where the finding names neither unit nor parameter, that unit is meant whose features tell
    the trials apart best.
    """
    a = run_of(case, finding.variant)
    named = focus_of(a, finding)
    if named != Focus():
        return _Search(a, named, finding.variant, trials).narrowed()
    focuses = [Focus(), *map(Focus, a.units)]
    found = [_Search(a, focus, finding.variant, trials).narrowed() for focus in focuses]
    return min(found, key=_worth)


def _worth(narrowed: Narrowed) -> tuple[int, int, int]:
    when = narrowed.predicate
    return len(narrowed.despite), -len(when.unit), len(when.case)


class _Search:
    """Picks features for one focus."""

    def __init__(self, a: Anatomy, focus: Focus, variant: str, trials: Sequence[Trial]) -> None:
        self.focus = focus
        self.api = a.api
        self.hidden = [(trial, run_of(trial.case, variant)) for trial in trials if trial.without]
        self.values: dict[Atom, tuple[str, ...]] = {
            atom: (value,) for atom, value in _values(a, focus).items()
        }
        for trial in trials:
            if trial.finding is not None:
                self._widen(trial.case, trial.finding)

    def _widen(self, case: CaseSpec, finding: Finding) -> None:
        """Lets in a trial that shows the finding, too; what it has nothing of is not needed."""
        a = run_of(case, finding.variant)
        named = focus_of(a, finding)
        found = _values(a, named if named != Focus() else self.focus)
        for atom, values in list(self.values.items()):
            if atom not in found:
                del self.values[atom]
            elif found[atom] not in values:
                self.values[atom] = (*values, found[atom])

    def narrowed(self) -> Narrowed:
        chosen: dict[Atom, tuple[str, ...]] = {API: self.values[API]}
        apart = [(self._apart(a), trial) for trial, a in self.hidden]
        # What one feature alone explains comes first, so that it need not be guessed again.
        for atoms, _ in sorted(apart, key=lambda pair: len(pair[0])):
            if atoms and chosen.keys().isdisjoint(atoms):
                close = [atom for atom in atoms if atom[0] in CLOSE]
                chosen |= {atom: self.values[atom] for atom in close or atoms}
        chosen |= self._unusual()
        if RANKS in chosen:
            chosen[RANKS] = self._ranks()
        predicate = _predicate(chosen)
        despite = tuple(trial for trial, a in self.hidden if predicate.covers(a))
        return Narrowed(predicate, despite)

    def _unusual(self) -> dict[Atom, tuple[str, ...]]:
        """What nothing speaks against although it is rare: more would be covered than was seen.

        Of a case, what changed beside something that is needed is left out: the number of units
        does so wherever a unit goes.
        """
        tried, usual = self._changed(), _usual(self.api)
        return {
            atom: values
            for atom, values in self.values.items()
            if len(values) == 1
            and values[0] not in usual.get(atom, values)
            and (atom[0] in CLOSE or atom not in tried)
        }

    def _apart(self, a: Anatomy) -> tuple[Atom, ...]:
        """The features in which a trial without the finding differs from all that have it."""
        found = {atom: frozenset((value,)) for atom, value in _values(a, self.focus).items()}
        return tuple(
            atom
            for atom, values in self.values.items()
            if found.get(atom, _anywhere(a, atom)).isdisjoint(values)
        )

    def _changed(self) -> set[Atom]:
        """What a trial without the finding has otherwise; of what is gone nothing can be said."""
        return {
            atom
            for _, a in self.hidden
            for atom, value in _values(a, self.focus).items()
            if value not in self.values.get(atom, (value,))
        }

    def _ranks(self) -> tuple[str, ...]:
        """The world sizes; all from the smallest on, if none that was tried speaks against it."""
        shown = sorted(int(value) for value in self.values[RANKS])
        without = [a.case.world_size for _, a in self.hidden if RANKS in self._apart(a)]
        if all(size < shown[0] for size in without):
            return tuple(str(size) for size in range(shown[0], MAX_RANKS + 1))
        return tuple(map(str, shown))


@cache
def _usual(api: Api) -> dict[Atom, tuple[str, ...]]:
    """The values that features have in a plain training, and their plainest ones."""
    plan = Fsdp1Plan(units=(Fsdp1Unit(path=""),))
    plain = CaseSpec(
        world_size=2,
        model=Linear(out=8, bias=False),
        inputs=Dense(width=8),
        plan=plan if api == "fsdp1" else Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        program=(*ITERATION, ZeroGrad()),
    )
    known = {"case": FEATURES, "unit": UNIT_FEATURES, "parameter": PARAMETER_FEATURES}
    return {
        (level, name): (value, *known[level][name].values[:1])
        for (level, name), value in _values(anatomy(plain), Focus("", "weight")).items()
        if (level, name) != RANKS
    }


def _values(a: Anatomy, focus: Focus) -> dict[Atom, str]:
    """The features of the case, and of what is in focus as far as the case has it."""
    return dict(_each(a, focus))


def _each(a: Anatomy, focus: Focus) -> Iterator[tuple[Atom, str]]:
    if focus.parameter is not None and focus.parameter in a.by_fqn:
        yield from _at("parameter", parameter_features(a, focus.parameter))
    if focus.unit is not None and focus.unit in a.options:
        yield from _at("unit", unit_features(a, focus.unit))
    yield from _at("case", features(a.case))


def _at(level: Level, found: Mapping[str, str]) -> Iterator[tuple[Atom, str]]:
    yield from (((level, name), value) for name, value in found.items())


def _anywhere(a: Anatomy, atom: Atom) -> frozenset[str]:
    """The values that a feature has of any unit, or of any parameter: the one meant is gone."""
    level, name = atom
    found: Iterable[Mapping[str, str]] = ()
    if level == "unit":
        found = (unit_features(a, path) for path in a.units)
    elif level == "parameter":
        found = (parameter_features(a, fqn) for fqn in a.by_fqn)
    return frozenset(values[name] for values in found if name in values)


def _predicate(chosen: Mapping[Atom, tuple[str, ...]]) -> Predicate:
    by_level: dict[Level, dict[str, tuple[str, ...]]] = {level: {} for level in LEVELS}
    for (level, name), values in chosen.items():
        by_level[level][name] = values
    return Predicate(case=by_level["case"], unit=by_level["unit"], parameter=by_level["parameter"])
