"""Which parameters are trained: frozen ones, and ones kept from the optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Simpler
from fsdpfuzz.case.modules import Imported
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.operations.requires_grad import frozen_with_gradient
from fsdpfuzz.case.units.use_orig_params import mixed_units
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec


def adapter_names(a: Anatomy) -> frozenset[str]:
    """FQNs of the low-rank parameters that fine-tuning with adapters trains."""
    bases = {place.path for place in a.places if place.kind == "lora"}
    return frozenset(
        parameter.fqn
        for place in a.places
        if place.path.endswith(("down", "up")) and place.path.rpartition(".")[0] in bases
        for parameter in place.parameters
    )


class FreezingDimension(Dimension):
    """``requires_grad`` at the start, and which parameters the optimizer holds."""

    name = "freezing"
    features: ClassVar[Mapping[str, Feature]] = {
        "freeze": Feature(
            about="none, all, alternate (every other parameter), adapters (all but them), some",
            group="Parameters",
            values=("none", "all", "alternate", "adapters", "some"),
            excludes={"adapters": {"lora": ("off",)}},
        ),
        "frozen_unit": Feature(
            about="on when all parameters of a unit are frozen",
            group="Parameters",
            values=ON,
            excludes={"on": {"freeze": ("none",)}},
        ),
        "mixed_unit": Feature(
            about="on when a unit manages frozen and trainable parameters",
            group="Parameters",
            values=ON,
            excludes={"on": {"freeze": ("none", "all")}},
        ),
        "held_out": Feature(
            about="on when parameters that require grad are kept from the optimizer",
            group="Parameters",
            values=ON,
        ),
    }
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "freeze": Feature(
            about="none, all, some of the unit's parameters are frozen at the start",
            group="Parameters",
            values=("none", "all", "some"),
        ),
    }
    parameter_features: ClassVar[Mapping[str, Feature]] = {
        "frozen": Feature(
            about="on when the parameter is frozen at the start", group="Parameters", values=ON
        ),
        "frozen_with_gradient": Feature(
            about="off, on (the program freezes the parameter while it has a gradient, zeros "
            "included, and a forward runs before that is cleared), unfrozen (and later another "
            "one, with the parameter unfrozen again)",
            group="Parameters",
            values=("off", "on", "unfrozen"),
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """How much is frozen, and how that lies to units."""
        names = [p.fqn for p in a.distinct]
        yield "freeze", _freeze(a, names)
        states = [{p.fqn in a.frozen for p in owned} for owned in a.owned.values()]
        yield "frozen_unit", on({True} in states)
        yield "mixed_unit", on(bool(mixed_units(a)))
        yield "held_out", on(bool(a.case.held_out))

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """How much of the unit is frozen."""
        states = {p.fqn in a.frozen for p in a.owned[path]}
        yield "freeze", "some" if len(states) > 1 else "all" if True in states else "none"

    def parameter_values(self, a: Anatomy, fqn: str) -> Iterator[tuple[str, str]]:
        """Whether it is frozen."""
        yield "frozen", on(fqn in a.frozen)
        yield "frozen_with_gradient", frozen_with_gradient(a).get(a.canonical(fqn), "off")

    def check(self, a: Anatomy) -> None:
        """Names of parameters."""
        check_names(a.case.frozen, a.by_fqn, "$.frozen", "parameter")
        check_names(a.case.held_out, a.by_fqn, "$.held_out", "parameter")
        own = a.imported
        if own is not None and own.wrapped and own.leaves_frozen is not None:
            asked = set(a.canonical_names(a.case.frozen))
            if asked != set(own.leaves_frozen):
                left = ", ".join(own.leaves_frozen) or "none"
                text = f"shard(model, mesh) of the target leaves these frozen and no other: {left}"
                raise CaseError(text, path="$.frozen")

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """Nothing frozen, less frozen; nothing held out."""
        replace = msgspec.structs.replace
        own = case.model.own_frozen if isinstance(case.model, Imported) else case.frozen
        if case.frozen != own:
            yield Simpler(replace(case, frozen=own), "another freezing than freeze(model)")
        if case.frozen:
            yield Simpler(replace(case, frozen=()), "frozen parameters")
        for i in range(len(case.frozen)) if len(case.frozen) > 1 else ():
            yield Simpler(replace(case, frozen=case.frozen[:i] + case.frozen[i + 1 :]))
        if case.held_out:
            yield Simpler(replace(case, held_out=()), "parameters kept from the optimizer")


def _freeze(a: Anatomy, names: Sequence[str]) -> str:
    held = a.frozen.intersection(names)
    if not held:
        return "none"
    if len(held) == len(names):
        return "all"
    adapters = adapter_names(a)
    if adapters and held == set(names) - adapters:
        return "adapters"
    # The order of ``named_parameters``: under it weights and biases mostly take turns.
    return "alternate" if held in (set(names[::2]), set(names[1::2])) else "some"
