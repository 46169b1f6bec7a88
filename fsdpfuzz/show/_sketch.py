"""A case as a tree of short texts, which the drawing, the report and the tests share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from fsdpfuzz.show._words import checkpoint_words, common_options, kind_words, unit_words
from fsdpfuzz.spec import (
    CaseSpec,
    Parameter,
    Place,
    case_places,
    frozen_names,
    owners_among,
    unit_of,
    units_among,
)

MarkKind = Literal["unit", "checkpoint", "frozen", "tied", "unused", "held_out", "ignored"]


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is special about a module or a parameter."""

    kind: MarkKind
    text: str


class ParameterSketch(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter: its name inside its module, its shape as ``5×3``, its marks."""

    name: str
    shape: str
    marks: tuple[Mark, ...] = ()


class ModuleSketch(msgspec.Struct, frozen=True, kw_only=True):
    """A module with what lies in it. ``name`` is relative to the module around it."""

    name: str
    kind: str
    marks: tuple[Mark, ...] = ()
    parameters: tuple[ParameterSketch, ...] = ()
    buffers: tuple[str, ...] = ()
    children: tuple[ModuleSketch, ...] = ()


def sketch(case: CaseSpec) -> ModuleSketch:
    """The model of a case with everything that was done to it, as texts."""
    found = case_places(case)
    marks = _Marks(case, found)
    inside = _children(found)

    def build(place: Place, name: str) -> ModuleSketch:
        return ModuleSketch(
            name=name,
            kind=kind_words(place),
            marks=marks.of_module(place),
            parameters=tuple(
                ParameterSketch(
                    name=_relative(parameter.fqn, place.path),
                    shape="×".join(map(str, parameter.shape)) or "scalar",
                    marks=marks.of_parameter(parameter),
                )
                for parameter in place.parameters
            ),
            buffers=tuple(_relative(buffer, place.path) for buffer in place.buffers),
            children=tuple(
                build(child, _relative(child.path, place.path))
                for child in inside.get(place.path, ())
            ),
        )

    return build(found[0], "model")


class _Marks:
    """What is special about each module and parameter of one case."""

    def __init__(self, case: CaseSpec, found: Sequence[Place]) -> None:
        self._case = case
        self._units = frozenset(units_among(found, case.plan))
        self._said = common_options(case)
        self._owners = owners_among(found, case.plan)
        self._frozen = frozen_names(case)
        self._partners: dict[str, list[str]] = {}
        for tie in case.ties:
            self._partners.setdefault(tie.target, []).append(tie.source)
            self._partners.setdefault(tie.source, []).append(tie.target)

    def of_module(self, place: Place) -> tuple[Mark, ...]:
        """Unit and checkpoint, the outer one first."""
        unit = [
            Mark(kind="unit", text=unit_words(unit_of(self._case.plan, path), self._said))
            for path in (place.path,)
            if path in self._units
        ]
        around: list[Mark] = []
        inside: list[Mark] = []
        for checkpoint in self._case.checkpoints:
            if checkpoint.path == place.path:
                mark = Mark(
                    kind="checkpoint", text=checkpoint_words(checkpoint, at_unit=bool(unit))
                )
                (around if checkpoint.side == "around" else inside).append(mark)
        return (*around, *unit, *inside)

    def of_parameter(self, parameter: Parameter) -> tuple[Mark, ...]:
        """Frozen, unused, tied, kept from the optimizer, outside all units."""
        fqn, found = parameter.fqn, []
        if fqn in self._frozen:
            found.append(Mark(kind="frozen", text="frozen"))
        if not parameter.used:
            found.append(Mark(kind="unused", text="unused"))
        if fqn in self._partners:
            found.append(Mark(kind="tied", text=f"tied to {', '.join(self._partners[fqn])}"))
        if fqn in self._case.held_out:
            found.append(Mark(kind="held_out", text="not in the optimizer"))
        if self._owners[fqn] is None:
            found.append(Mark(kind="ignored", text="in no unit"))
        return tuple(found)


def _children(found: Sequence[Place]) -> dict[str, list[Place]]:
    """Places by the path of the place around them."""
    paths = {place.path for place in found}
    inside: dict[str, list[Place]] = {}
    for place in found[1:]:
        inside.setdefault(_parent(place.path, paths), []).append(place)
    return inside


def _parent(path: str, paths: Iterable[str]) -> str:
    while path:
        path = path.rpartition(".")[0]
        if path in paths:
            return path
    return ""


def _relative(name: str, path: str) -> str:
    return name.removeprefix(f"{path}.") if path else name
