"""``replicate`` of ``replicate_with_fsdp``, in place of ``fully_shard``.

Of the two functions of that name in ``torch.distributed._composable`` it is the one that FSDP's own
code runs: a unit that each rank has whole, of which gradients are reduced by one all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from fsdpfuzz.case.base import default_of, on
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.paths import innermost, within
from fsdpfuzz.case.recipe import Value
from fsdpfuzz.case.units.base import Option
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.wrap import Unit

NAME = "replicated"
REPLICATE = "torch.distributed._composable.replicate_with_fsdp.replicate"
SHARDED_ALONE = ("reshard_after_forward", "shard_placement")
"""Arguments of ``fully_shard`` that ``replicate`` does not take."""


class Replicated(Option):
    """Whether each rank has all of a unit, beside, below or above others that are sharded."""

    name = NAME
    newer: ClassVar[tuple[str, ...]] = (f"{REPLICATE}(mesh)",)
    feature: ClassVar[Feature] = Feature(
        about="off, some, across (some, one of them within a sharded unit within another of them), "
        "on: whether units are made by replicate and not by fully_shard (fsdp2 only)",
        group="Sharding",
        values=("off",),
        open=True,
        apis=("fsdp2",),
    )

    def asked(self, a: Anatomy) -> bool:
        """Where any are."""
        return any(map(is_replica, a.options.values()))

    def text(self, value: Any) -> str:
        """``on`` or ``off``."""
        return on(value)

    def merged(self, texts: Iterable[str]) -> str:
        """``some`` beside others that are sharded."""
        found = set(texts)
        return "some" if len(found) > 1 else found.pop()

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """All units together, and how those lie to each other that are replicated."""
        for name, value in super().values(a):
            yield name, "across" if _across(a.options) else value

    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """None: it is another function that is called."""
        return iter(())

    def needed(self, value: Any) -> str:
        """The function."""
        return "replicate"

    def check_unit(self, a: Anatomy, unit: Unit, at: str) -> None:
        """It has no options of what is sharded, and a mesh of one dimension."""
        if not is_replica(unit):
            return
        for name in SHARDED_ALONE:
            if getattr(unit, name) != default_of(type(unit), name):
                raise CaseError(f"replicate() takes no {name}", path=at)
        if unit.grouped:
            raise CaseError("several modules are one unit of fully_shard alone", path=at)
        # ``_validate_mesh`` in _composable/replicate_with_fsdp.py: "replicate expects a 1D
        # DeviceMesh".
        if a.case.mesh is not None or a.case.tensor_parallel is not None:
            raise CaseError("replicate() expects a mesh of one dimension", path=at)


def is_replica(unit: Unit | None) -> bool:
    """Whether a unit is replicated over all ranks, and not sharded."""
    return bool(getattr(unit, NAME, False))


def _across(options: Mapping[str, Unit]) -> bool:
    inner = [path for path, unit in options.items() if is_replica(unit)]
    outer = [path for path in options if path not in inner]
    return any(
        within(path, middle) and within(middle, top) and path != middle
        for middle in outer
        for path in inner
        for top in inner
    )


# ``_ReplicateState._get_state_for_module``: a root that is replicated takes those states alone for
# its own that are replicated, too; ``FSDPState`` takes both.
def roots_of(options: Mapping[str, Unit]) -> tuple[str, ...]:
    """The units whose state is that of no other unit around them."""

    def belongs(path: str, outer: str) -> bool:
        inside = path != outer and within(path, outer)
        return inside and (is_replica(options[path]) or not is_replica(options[outer]))

    return tuple(path for path in options if not any(belongs(path, outer) for outer in options))


def belongs_to(a: Anatomy, path: str) -> str | None:
    """The root that the unit at ``path`` belongs to, or is."""
    return innermost(path, frozenset(a.roots))
