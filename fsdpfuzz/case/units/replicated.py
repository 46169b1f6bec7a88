"""``replicate`` of ``replicate_with_fsdp``, in place of ``fully_shard``.

Of the two functions of that name in ``torch.distributed._composable`` it is the one that FSDP's own
code runs: a unit that each rank has whole, of which gradients are reduced by one all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.recipe import Value
from fsdpfuzz.case.units.base import Option
from fsdpfuzz.case.units.replicas import NAME, REPLICATE, across, is_replica
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.wrap import Unit


class Replicated(Option):
    """Whether each rank has all of a unit, beside, below or above others that are sharded."""

    name = NAME
    # torch 2.10 has a function of that name which takes no mesh of one dimension.
    newer: ClassVar[tuple[str, ...]] = (f"{REPLICATE.rpartition('.')[0]}._validate_mesh(mesh)",)
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
            yield name, "across" if across(a.options) else value

    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """None: it is another function that is called."""
        return iter(())

    def needed(self, value: Any) -> str:
        """The function."""
        return "replicate"

    def check_unit(self, a: Anatomy, unit: Unit, at: str) -> None:
        """It has a mesh of one dimension; what else it does not go with says so."""
        if not is_replica(unit):
            return
        # ``_validate_mesh`` in _composable/replicate_with_fsdp.py: "replicate expects a 1D
        # DeviceMesh".
        if a.case.mesh is not None or a.case.tensor_parallel is not None:
            raise CaseError("replicate() expects a mesh of one dimension", path=at)
        if a.case.spmd_mesh is not None:
            raise CaseError("has no shards, whose axes a named mesh says", path=at)
