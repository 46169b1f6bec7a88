"""Units that an exception leaves in the midst of a forward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.hazards.unit_calls import calls_of_units
from fsdpfuzz.case.operations.interrupt import called

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


@lru_cache(maxsize=64)
def unfinished_units(a: Anatomy) -> Mapping[str, str]:
    """Units that an exception leaves so: ``on``, or ``ahead`` if they had only been gathered."""
    found: dict[str, str] = {}
    for i, op in enumerate(a.case.program):
        if op.interrupts:
            b = a.at(i)
            open_, begun = op.cut_short(b)
            for path in b.units:
                modules = b.modules_of(path)
                left = any(m in open_ for m in modules) or not set(modules).issubset(begun)
                if left and any(m in begun for m in modules):
                    found[path] = "on"
            for path in _ahead(b, begun):
                found.setdefault(path, "ahead")
    return found


# ``FSDPState._reset_iter_state`` reads what ``FSDPCommContext.lazy_init`` makes in a first forward.
@lru_cache(maxsize=64)
def reset_early(a: Anatomy) -> frozenset[str]:
    """Roots of fsdp2 that start over after an exception, and no forward has come to them yet."""
    found: set[str] = set()
    for rank in a.telling_ranks if not a.fsdp1 else ():
        begun: set[str] = set()
        for i, op, now in a.situations(rank):
            b = a.at(i)
            if op.renews:
                begun.clear()
            _, modules = op.cut_short(b)
            begun.update(b.unit_at[path] for path in modules if path in b.unit_at)
            begun.update(unit for unit, _ in calls_of_units(b, op, now))
            if op.starts_over:
                found |= set(b.roots) - begun
    return frozenset(found)


# ``_pre_forward_unshard`` in fsdp/_runtime_utils.py.
def _ahead(a: Anatomy, begun: Sequence[str]) -> list[str]:
    """The unit of fsdp1 that the last one to begin gathers before its turn, if it does."""
    units = [path for path in begun if path in a.units and a.managed.get(path)]
    if not units or not a.fsdp1 or not a.fsdp1_options[units[-1]].forward_prefetch:
        return []
    order = [path for path in dict.fromkeys(called(a)) if path in a.units and a.managed.get(path)]
    return order[order.index(units[-1]) + 1 :][:1]


class UnfinishedDimension(Hazard):
    """Which units an exception leaves unfinished."""

    name = "unfinished"
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "unfinished": Feature(
            about="off, on (an exception leaves a forward of the unit unfinished), ahead (before "
            "one, the unit was gathered for a forward that it never came to: fsdp1)",
            group="Training",
            values=("off", "on", "ahead"),
        ),
        "reset_early": Feature(
            about="on when reset_iter_state is called on the root before any forward has come to "
            "it (fsdp2 only)",
            group="Training",
            # Of few cases, which are known to fail: no pair is waited for.
            values=("off",),
            open=True,
            apis=("fsdp2",),
        ),
    }

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Of one unit."""
        yield "unfinished", unfinished_units(a).get(path, "off")
        if not a.fsdp1:
            yield "reset_early", on(path in reset_early(a))
