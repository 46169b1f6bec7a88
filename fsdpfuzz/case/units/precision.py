"""``MixedPrecision`` of fsdp1 and ``MixedPrecisionPolicy`` of fsdp2."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from fsdpfuzz.case.base import Dtype, Part
from fsdpfuzz.case.dimension import ON, Feature
from fsdpfuzz.case.paths import innermost
from fsdpfuzz.case.recipe import Value, call, dtype
from fsdpfuzz.case.units.base import Option, anywhere

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.wrap import Plan, Unit

WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of an element."""
EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Machine epsilon."""


class Precision(Part, frozen=True, kw_only=True):
    """``MixedPrecision`` (fsdp1) or ``MixedPrecisionPolicy`` (fsdp2); None leaves a dtype as is."""

    param: Dtype | None = None
    reduce: Dtype | None = None
    buffer: Dtype | None = None
    """fsdp1 only."""


class PrecisionOption(Option):
    """The dtypes in which a unit computes and reduces."""

    name = "precision"
    free: ClassVar[bool] = False
    feature: ClassVar[Feature] = Feature(
        about="on when any unit has a precision policy", group="Sharding", values=ON
    )

    def text(self, value: Any) -> str:
        """``on`` for any policy."""
        return "off" if value is None else "on"

    def merged(self, texts: Iterable[str]) -> str:
        """``on`` where any unit has one."""
        return anywhere(texts)

    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """``mixed_precision`` or ``mp_policy``."""
        first = self.is_first(unit)
        name = "MixedPrecision" if first else "MixedPrecisionPolicy"
        policy: Value = None
        if value is not None:
            kinds = ("param", "reduce", "buffer") if first else ("param", "reduce")
            given = {f"{kind}_dtype": dtype(getattr(value, kind)) for kind in kinds}
            given = {kind: named for kind, named in given.items() if named is not None}
            policy = call(f"torch.distributed.fsdp.{name}", **given)
        yield "mixed_precision" if first else "mp_policy", policy

    def is_first(self, unit: Unit) -> bool:
        """Whether a unit is fsdp1's."""
        return "sharding" in unit.__struct_fields__

    def words(self, value: Any) -> str:
        """``precision(param bfloat16)``."""
        given = [f"{n} {v}" for n, v in msgspec.structs.asdict(value).items() if v is not None]
        return f"precision({', '.join(given)})"

    def needed(self, value: Any) -> str:
        """In two words."""
        return "mixed precision"


def reduced_in(unit: Unit) -> Dtype | None:
    """The dtype in which a unit reduces gradients, where it says so."""
    precision = unit.precision
    return None if precision is None else precision.reduce or precision.param


def coarsest(plan: Plan) -> Dtype:
    """The coarsest dtype that a plan lets take part."""
    names: list[Dtype] = ["float32"]
    for unit in plan.units:
        if unit.precision is not None:
            given = (unit.precision.param, unit.precision.reduce, unit.precision.buffer)
            names += [name for name in given if name is not None]
    return max(names, key=lambda name: EPSILON[name])


def cast_buffer(a: Anatomy, fqn: str) -> Dtype | None:
    """The dtype to which FSDP has cast a floating-point buffer by the end of the program.

    It does so when the root runs or saves for the first time. None where the buffer keeps its own.
    """
    unit = innermost(fqn.rpartition(".")[0], a.units)
    precision = None if unit is None else a.options[unit].precision
    starts = any(op.kind() in ("forward", "state_dict") for op in a.case.program)
    return precision.buffer if precision is not None and starts else None


def computed_in(unit: Unit) -> Dtype | None:
    """The dtype in which a unit gathers its parameters and computes, where it says so."""
    return None if unit.precision is None else unit.precision.param


def coarsest_buffer(a: Anatomy) -> Dtype | None:
    """The coarsest dtype to which a unit casts its buffers; None where none does."""
    names = [
        unit.precision.buffer
        for unit in a.plan.units
        if unit.precision is not None and unit.precision.buffer is not None
    ]
    return max(names, key=lambda name: EPSILON[name], default=None)
