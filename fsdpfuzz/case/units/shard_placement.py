"""``shard_placement_fn`` of ``fully_shard``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta

from fsdpfuzz.case.base import ParameterName, Part
from fsdpfuzz.case.dimension import Feature, Rejection, one
from fsdpfuzz.case.recipe import Inside, Items, Value, call
from fsdpfuzz.case.tensor_parallel import local
from fsdpfuzz.case.units.listing import Listing, shown
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.wrap import Unit

_ALONG = ("default", "rows", "other")


class Placement(Part, frozen=True, kw_only=True):
    """``Shard(dim)`` for one parameter."""

    parameter: ParameterName
    dim: Annotated[int, Meta(ge=-4, le=3)]


def sharded_dims(a: Anatomy) -> Mapping[str, int]:
    """The dimension that each parameter is sharded along, counted from the first.

    By the name of a tie's source. Left out is what has no placement of its own.
    """
    found = {}
    for unit in a.fsdp2_options.values():
        for placement in unit.shard_placement:
            name = a.canonical(placement.parameter)
            found[name] = placement.dim % max(1, len(a.by_fqn[name].shape))
    return found


def uneven(a: Anatomy) -> bool:
    """Whether shards along another dimension than the first would not be equally large."""
    shapes = ((local(a, a.by_fqn[name]).shape, dim, name) for name, dim in sharded_dims(a).items())
    # Along dimension 0 FSDP2 pads (``FSDPParam._init_sharded_param``).
    return any(dim and shape[dim] % a.shards(a.owners[name]) for shape, dim, name in shapes)


class ShardPlacement(Listing):
    """The dimensions along which parameters are sharded."""

    name = "shard_placement"
    of_shards: ClassVar[bool] = True
    early: ClassVar[bool] = True
    feature: ClassVar[Feature] = Feature(
        about="off, rows (the first dimension by name), other, negative, mixed: what placements "
        "say (fsdp2 only)",
        group="Sharding",
        values=("off", "rows", "other", "negative", "mixed"),
        apis=("fsdp2",),
    )
    parameter_features: ClassVar[Mapping[str, Feature]] = {
        "sharded_along": Feature(
            about="default, rows, other: the dimension of its placement (fsdp2 only)",
            group="Sharding",
            values=_ALONG,
            apis=("fsdp2",),
        )
    }
    rejections: ClassVar[tuple[Rejection, ...]] = (
        Rejection(
            name="fsdp2_uneven_placement",
            why="shards along another dimension than the first must be equally large",
            pattern=r"FSDP does not support uneven sharding on dim",
            source="docstring of fully_shard: shard_placement_fn",
            asked=lambda a: not a.fsdp1 and uneven(a),
        ),
    )

    def text(self, value: Any) -> str:
        """What all placements of a unit are, as they are written."""
        kinds = ("rows" if p.dim == 0 else "other" if p.dim > 0 else "negative" for p in value)
        return one(kinds, none="off")

    def merged(self, texts: Iterable[str]) -> str:
        """What the units say that say anything."""
        return one((text for text in texts if text != "off"), none="off")

    def parameter_values(self, a: Anatomy, fqn: str) -> Iterator[tuple[str, str]]:
        """Along which dimension it is sharded."""
        if not a.fsdp1:
            dim = sharded_dims(a).get(a.canonical(fqn))
            yield "sharded_along", _ALONG[0 if dim is None else 1 if dim == 0 else 2]

    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """``shard_placement_fn``."""
        told: list[Value] = []
        for placement in value:
            along = call("torch.distributed.tensor.Shard", placement.dim)
            told += [Inside("model", placement.parameter), along]
        made = call("steps.fsdp2.shard_placement.of", Items("dict", tuple(told)))
        yield "shard_placement_fn", made if told else None

    def words(self, value: Any) -> str:
        """``0.weight along 1``."""
        return f"shards {shown(f'{p.parameter} along {p.dim}' for p in value)}"

    def needed(self, value: Any) -> str:
        """Its name."""
        return "shard_placement_fn"

    def check_unit(self, a: Anatomy, unit: Unit, at: str) -> None:
        """Each is for a parameter that the unit manages, and for a dimension that it has."""
        owned = {a.canonical(p.fqn) for p in a.owned[unit.path]}
        seen: set[str] = set()
        for i, placement in enumerate(getattr(unit, self.name, ())):
            name = a.canonical(placement.parameter)
            if name not in owned:
                raise CaseError(f"the unit does not manage {name!r}", path=f"{at}[{i}]")
            if name in seen:
                raise CaseError(f"{name!r} stands here twice", path=f"{at}[{i}]")
            seen.add(name)
            dims = len(a.by_fqn[name].shape)
            if not -dims <= placement.dim < dims:
                raise CaseError(f"{name!r} has {dims} dimensions", path=f"{at}[{i}].dim")
