"""Parameters that do not lie in memory as they are indexed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Rejection, Simpler
from fsdpfuzz.case.modules import Transposed
from fsdpfuzz.case.paths import join

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec


@lru_cache(maxsize=64)
def orders(a: Anatomy) -> Mapping[str, tuple[int, ...]]:
    """Parameters that are not contiguous, by both FQNs where one is tied.

    For each its dimensions, from the outermost in memory to the innermost.
    """
    # A tie puts the source in place of the target, as it lies.
    own: dict[str, tuple[int, ...]] = {
        join(place.path, "weight"): (1, 0)
        for place in a.places
        if isinstance(place.node, Transposed) and join(place.path, "weight") not in a.source
    }
    if a.imported is not None:
        own = {
            join(module.path, p.name): p.order
            for module in a.imported.modules
            for p in module.parameters
            if p.order
        }
    return own | {target: own[source] for target, source in a.source.items() if source in own}


def transposed(a: Anatomy) -> frozenset[str]:
    """FQNs of the parameters that are not contiguous, by both names where one is tied."""
    return frozenset(orders(a))


def without_elements(a: Anatomy) -> tuple[str, ...]:
    """FQNs of the parameters that have no element."""
    return tuple(p.fqn for p in a.parameters if not p.numel)


def saved_as(a: Anatomy) -> str:
    """``shards`` if the program saves any, ``saved`` if its optimizer state, else ``on``."""
    if any(op.saves_shards for op in a.case.program):
        return "shards"
    saves = any(op.saves_optimizer or op.names_state() for op in a.case.program)
    return "saved" if saves else "on"


class StridesDimension(Dimension):
    """Whether any is not contiguous, which fsdp1 lays out as it lies, and fsdp2 refuses."""

    name = "strides"
    of_model: ClassVar[bool] = True
    drawn: ClassVar[bool] = False
    features: ClassVar[Mapping[str, Feature]] = {
        "transposed": Feature(
            about="off, on, saved, shards: whether a parameter is not contiguous, as the "
            "transpose of another is not, and how it is saved: its optimizer state, in shards",
            group="Parameters",
            # In few models, which fsdp2 refuses: no pair is waited for.
            values=("off",),
            open=True,
        ),
    }
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "transposed": Feature(
            about="on when the unit manages a parameter that is not contiguous",
            group="Parameters",
            values=ON,
        ),
    }
    parameter_features: ClassVar[Mapping[str, Feature]] = {
        "transposed": Feature(
            about="on when the parameter is not contiguous, as the transpose of another is not",
            group="Parameters",
            values=ON,
        ),
    }
    rejections: ClassVar[tuple[Rejection, ...]] = (
        Rejection(
            name="fsdp2_not_contiguous",
            why="fsdp2 cuts none but contiguous parameters",
            pattern=r"FSDP does not support non-contiguous parameters yet",
            source="torch/distributed/fsdp/_fully_shard/_fsdp_param.py: _init_sharded_param",
            asked=lambda a: not a.fsdp1 and any(a.owners[fqn] is not None for fqn in transposed(a)),
        ),
    )

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether there is any."""
        yield "transposed", saved_as(a) if transposed(a) else "off"

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Whether it manages any."""
        yield "transposed", on(any(p.fqn in transposed(a) for p in a.owned[path]))

    def parameter_values(self, a: Anatomy, fqn: str) -> Iterator[tuple[str, str]]:
        """Whether it is."""
        yield "transposed", on(fqn in transposed(a))

    def check(self, a: Anatomy) -> None:
        """Each API says by itself what it takes."""

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """`fsdpfuzz.reduce` takes models apart."""
        return iter(())
