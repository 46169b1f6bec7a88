"""``reshard_after_forward`` of ``fully_shard``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.recipe import Value
from fsdpfuzz.case.units.base import Option
from fsdpfuzz.case.units.replicas import is_replica
from fsdpfuzz.case.units.sharding import shards
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.units.configured import Configuration
    from fsdpfuzz.case.wrap import Fsdp2Plan, Fsdp2Unit, Unit


METHOD = "set_reshard_after_forward"

_AFTER = Feature(
    about="sharded, whole, part (over fewer ranks): how a forward leaves the unit (fsdp2 only)",
    group="Sharding",
    values=("sharded", "whole", "part"),
    apis=("fsdp2",),
)


class ReshardAfterForward(Option):
    """Whether parameters are freed after forward, or kept on groups of that many ranks."""

    name = "reshard_after_forward"
    of_shards: ClassVar[bool] = True
    configured_by: ClassVar[tuple[str, ...]] = ("fsdp_reshard_after_forward",)
    feature: ClassVar[Feature] = Feature(
        about="default, on, off, int, mixed (fsdp2 only)",
        group="Sharding",
        values=("default", "on", "off", "int", "mixed"),
        apis=("fsdp2",),
    )

    def __init__(self) -> None:
        super().__init__()
        self.unit_features = {**self.unit_features, "after_forward": _AFTER}  # type: ignore[misc]

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """The option, and what becomes of it: by default only roots stay whole."""
        yield from super().unit_values(a, path)
        if self.has(a.options[path]):
            yield "after_forward", left_by_forward(a, path)

    def configured(self, kind: type[Unit], config: Configuration) -> Any:
        """On, unless it says otherwise."""
        return config.flag(self.configured_by[0], default=True)

    def text(self, value: Any) -> str:
        """``int`` for a number of ranks."""
        if value is None:
            return "default"
        return on(value) if isinstance(value, bool) else "int"

    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """``reshard_after_forward``."""
        yield "reshard_after_forward", value

    def words(self, value: Any) -> str:
        """``reshard_after_forward=2``."""
        return f"reshard_after_forward={value}"

    def check_unit(self, a: Anatomy, unit: Unit, at: str) -> None:
        """A number of ranks divides the number of ranks that a unit is sharded over."""
        size = unit.reshard_after_forward
        if size is None or isinstance(size, bool):
            return
        ranks = shards(a.case, unit)
        if ranks % size:
            raise CaseError(
                f"reshard_after_forward={size} does not divide the {ranks} ranks that the unit is "
                "sharded over",
                path=at,
            )


def left_by_forward(a: Anatomy, path: str) -> Literal["sharded", "whole", "part"]:
    """How a forward leaves a unit of fsdp2; by default only roots stay whole."""
    value = a.options[path].reshard_after_forward
    if is_replica(a.options[path]):
        value = False
    if value is None:
        # ``FSDPState._lazy_init``: backward would gather the root again at once.
        value = path not in a.roots
    # ``_get_post_forward_mesh_info`` takes 1 for False and the whole size for True.
    if value is False or (not isinstance(value, bool) and value == 1):
        return "whole"
    return "sharded" if value is True or value == a.shards(path) else "part"


def told_ranks(a: Anatomy) -> set[str]:
    """Units (fsdp2) told a number of ranks to be sharded over after forward."""
    return {path for path, unit in a.options.items() if type(unit.reshard_after_forward) is int}


def ways_left(a: Anatomy, path: str) -> set[str]:
    """How forwards leave a unit, under each plan that has it."""
    return {left_by_forward(b, path) for b in a.under_each_plan if path in b.options}


def with_reshard(plan: Fsdp2Plan, reaches: Callable[[Fsdp2Unit], bool], value: bool) -> Fsdp2Plan:
    """The plan with the option of the units that are reached set to another value."""
    units = tuple(
        msgspec.structs.replace(unit, reshard_after_forward=value) if reaches(unit) else unit
        for unit in plan.units
    )
    return msgspec.structs.replace(plan, units=units)


def over_some(unit: Unit) -> bool:
    """Whether a unit is told over how many ranks a forward leaves it."""
    value = unit.reshard_after_forward
    return value is not None and not isinstance(value, bool)


def resharded_over_some(a: Anatomy) -> bool:
    """Whether any unit is, under any plan."""
    return any(over_some(unit) for b in a.under_each_plan for unit in b.options.values())


def told_to_reshard(a: Anatomy) -> bool:
    """Whether a unit is told how a forward leaves it, instead of by default."""
    told = (unit for b in a.under_each_plan for unit in b.options.values())
    return any(unit.reshard_after_forward is not None for unit in told)
