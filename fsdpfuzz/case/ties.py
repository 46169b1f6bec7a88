"""Parameters that are one and the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.base import ParameterName, Part
from fsdpfuzz.case.dimension import Dimension, Feature, Rejection, Simpler
from fsdpfuzz.case.modules import Imported
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.recipe import Do, Inside
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec


class Tie(Part, frozen=True, kw_only=True):
    """``target`` is the same ``nn.Parameter`` object as ``source``; both are FQNs."""

    source: ParameterName
    target: ParameterName

    def made(self) -> Do:
        """The statement that ties them."""
        return Do(call=Inside("model", self.source), into=(Inside("model", self.target),))


def _kind(first: str | None, second: str | None) -> str:
    if first == second:
        return "within unit"
    if first is None or second is None:
        return "across units"
    nested = within(first, second) or within(second, first)
    return "nested" if nested else "across units"


class TiesDimension(Dimension):
    """Parameters shared within a unit, or across units."""

    name = "ties"
    of_model: ClassVar[bool] = True
    features: ClassVar[Mapping[str, Feature]] = {
        "tied": Feature(
            about="no, within unit, across units, nested (units of which one contains the other)",
            group="Parameters",
            values=("no", "within unit", "across units", "nested"),
        ),
    }
    parameter_features: ClassVar[Mapping[str, Feature]] = {
        "tied": Feature(
            about="no, within unit, across units, nested: how the parameter's other name lies",
            group="Parameters",
            values=("no", "within unit", "across units", "nested"),
        ),
    }
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "tied": Feature(
            about="no, within unit, across units, nested: the ties of the unit's parameters",
            group="Parameters",
            values=("no", "within unit", "across units", "nested"),
        ),
    }
    rejections: ClassVar[tuple[Rejection, ...]] = (
        Rejection(
            name="fsdp2_tie_across_units",
            why="a parameter shared by two groups would be sharded twice (refused since 2.12)",
            pattern=r"is shared with a parameter already managed by another FSDP group",
            source="torch/distributed/fsdp/_fully_shard/_fsdp_state.py: "
            "_validate_no_duplicate_params",
            asked=lambda a: (
                # Across roots it is accepted, and the copies train apart (pytorch issue 176076).
                not a.fsdp1 and any(a.common_root(first, second) for first, second in a.split_ties)
            ),
        ),
    )

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """The tie that goes furthest."""
        yield "tied", _furthest({_kind(first, second) for _, first, second in a.shared})

    def parameter_values(self, a: Anatomy, fqn: str) -> Iterator[tuple[str, str]]:
        """Over all ties of the parameter."""
        source = a.canonical(fqn)
        kinds = {_kind(first, second) for name, first, second in a.shared if name == source}
        yield "tied", _furthest(kinds)

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Over all ties with an end in the unit."""
        kinds = {_kind(first, second) for _, first, second in a.shared if path in (first, second)}
        yield "tied", _furthest(kinds)

    def check(self, a: Anatomy) -> None:
        """Both ends exist and have one shape; no tie of a tie."""
        case, shapes = a.case, {p.fqn: p.shape for p in a.parameters}
        targets = [tie.target for tie in case.ties]
        own = None if a.imported is None else a.imported.ties
        if own is not None and own != tuple((tie.source, tie.target) for tie in case.ties):
            raise CaseError("an imported model is tied as its own code does it", path="$.ties")
        for i, tie in enumerate(case.ties):
            at = f"$.ties[{i}]"
            check_names((tie.source, tie.target), shapes, at, "parameter")
            if tie.source in targets or targets.count(tie.target) > 1:
                raise CaseError(f"{tie.source!r} -> {tie.target!r} chains two ties", path=at)
            if shapes[tie.source] != shapes[tie.target]:
                raise CaseError(
                    f"shapes differ: {tie.source!r} is {list(shapes[tie.source])}, "
                    f"{tie.target!r} is {list(shapes[tie.target])}",
                    path=at,
                )
            # They are one tensor: freezing the target would freeze the source, though the case says
            # otherwise.
            if tie.target in case.frozen and tie.source not in case.frozen:
                raise CaseError(
                    f"freeze the source of a tie, {tie.source!r}, not its target", path=at
                )

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """No ties; one less. An imported model keeps its own."""
        if isinstance(case.model, Imported):
            return
        if case.ties:
            yield Simpler(msgspec.structs.replace(case, ties=()), "tied parameters")
        for i in range(len(case.ties)) if len(case.ties) > 1 else ():
            left = case.ties[:i] + case.ties[i + 1 :]
            yield Simpler(msgspec.structs.replace(case, ties=left))


def _furthest(kinds: set[str]) -> str:
    return next((k for k in ("nested", "across units", "within unit") if k in kinds), "no")
