"""``register_fsdp_forward_method``: units that are called by another method than ``forward``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Simpler
from fsdpfuzz.case.modules.method import METHOD
from fsdpfuzz.case.recipe import MODEL, Do, Inside, Value, call
from fsdpfuzz.case.units.replicas import belongs_to
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec
    from fsdpfuzz.case.wrap import Unit

_REGISTER = "torch.distributed.fsdp.register_fsdp_forward_method"


def registered(a: Anatomy) -> tuple[str, ...]:
    """Units of fsdp2 that gather and reshard around a method, as they do around forward."""
    called = _called(a)
    return tuple(
        path for path in a.units if not a.fsdp1 and (a.by_path[path].by_method or path in called)
    )


def _called(a: Anatomy) -> frozenset[str]:
    """FQNs of the modules of which the program calls a method."""
    return frozenset(op.called for op in a.case.program if op.calls_method)


class ForwardMethodsDimension(Dimension):
    """By which method the program calls the model; what a module calls so is part of the model."""

    name = "forward_methods"
    features: ClassVar[Mapping[str, Feature]] = {
        "forward_method": Feature(
            about="no, inner, root (by the program), both: the units that are called by another "
            "method than forward (fsdp2 only)",
            group="Wrapping",
            values=("no", "inner", "root", "both"),
            apis=("fsdp2",),
            excludes={"both": {"units": ("1",), "nesting": ("flat",)}},
        )
    }
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "by_method": Feature(
            about="on when the unit is called by another method than forward (fsdp2 only)",
            group="Wrapping",
            values=ON,
            apis=("fsdp2",),
        )
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Who calls units so."""
        if not a.fsdp1:
            units = registered(a)
            inner = "inner" if any(units) else "no"
            yield "forward_method", inner if "" not in units else "both" if any(units) else "root"

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Of one unit."""
        if not a.fsdp1:
            yield "by_method", on(path in registered(a))

    def check(self, a: Anatomy) -> None:
        """Only fsdp2 is told of methods, and checkpoints of none."""
        places = a.by_path
        units: tuple[Unit, ...] = a.plan.units
        for i, unit in enumerate(units):
            if a.fsdp1 and places[unit.path].by_method:
                text = f"{unit.path!r} has no forward, for which alone fsdp1 gathers"
                raise CaseError(text, path=f"$.plan.units[{i}].path")
        calls = _called(a)
        for i, checkpoint in enumerate(a.case.checkpoints):
            # All of them act where the module itself is called, or replace its forward.
            if places[checkpoint.path].by_method or checkpoint.path in calls:
                text = f"a method of {checkpoint.path!r} is called, which no checkpoint recomputes"
                raise CaseError(text, path=f"$.checkpoints[{i}].path")
        for i, op in enumerate(a.case.program):
            node = places[op.called].node if op.calls_method else None
            if op.calls_method and (a.fsdp1 or node is None or not node.encodes):
                text = f"{op.called!r} has no method for fsdp2 beside forward"
                raise CaseError(text, path=f"$.program[{i}].by_method")

    def told(self, a: Anatomy, root: Value) -> Iterator[Do]:
        """Each unit that is called so."""
        top = root.path if isinstance(root, Inside) else ""
        for path in registered(a):
            if belongs_to(a, path) == top:
                unit = Inside("model", path) if path else MODEL
                yield Do(call=call(_REGISTER, unit, METHOD), who="fsdp")

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """The operations that call them do so by forward."""
        return iter(())
