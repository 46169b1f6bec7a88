"""A case as a tree of short texts, which the drawing, the report and the tests share."""

from __future__ import annotations

from typing import Literal

import msgspec

from fsdpfuzz.case import Anatomy, CaseSpec, Parameter, Place, anatomy, innermost, side_of
from fsdpfuzz.show._words import common_options, kind_words, unit_words

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
    a = anatomy(case)
    marks = _Marks(a)
    inside: dict[str | None, list[Place]] = {}
    for place in a.places[1:]:
        around = innermost(place.path.rpartition(".")[0], a.by_path)
        inside.setdefault(around, []).append(place)

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

    return build(a.places[0], "model")


class _Marks:
    """What is special about each module and parameter of one case."""

    def __init__(self, a: Anatomy) -> None:
        self._a = a
        self._said = common_options(a)
        self._partners: dict[str, list[str]] = {}
        for tie in a.case.ties:
            self._partners.setdefault(tie.target, []).append(tie.source)
            self._partners.setdefault(tie.source, []).append(tie.target)

    def of_module(self, place: Place) -> tuple[Mark, ...]:
        """Unit and checkpoint, the outer one first."""
        unit = self._a.options.get(place.path)
        found: list[Mark] = []
        if unit is not None:
            found.append(Mark(kind="unit", text=unit_words(unit, self._said)))
        for checkpoint in self._a.case.checkpoints:
            if checkpoint.path == place.path:
                side = side_of(self._a, checkpoint)
                text = checkpoint.words(side)
                at = 0 if side == "around" else len(found)
                found.insert(at, Mark(kind="checkpoint", text=text))
        return tuple(found)

    def of_parameter(self, parameter: Parameter) -> tuple[Mark, ...]:
        """Frozen, unused, tied, kept from the optimizer, outside all units."""
        fqn, found = parameter.fqn, []
        if fqn in self._a.frozen:
            found.append(Mark(kind="frozen", text="frozen"))
        if not parameter.used:
            found.append(Mark(kind="unused", text="unused"))
        if fqn in self._partners:
            found.append(Mark(kind="tied", text=f"tied to {', '.join(self._partners[fqn])}"))
        if fqn in self._a.case.held_out:
            found.append(Mark(kind="held_out", text="not in the optimizer"))
        if self._a.owners[fqn] is None:
            found.append(Mark(kind="ignored", text="in no unit"))
        return tuple(found)


def _relative(name: str, path: str) -> str:
    return name.removeprefix(f"{path}.") if path else name
