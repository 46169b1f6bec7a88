"""What fsdp2 leaves for later in micro-batches that do not synchronise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.base import ModulePath, Part, on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Simpler
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.recipe import MODEL, Inside, Items, Value, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

_SYNCHRONISED = {"accumulation": ("off", "sync")}
_PLAINER = (
    ("all_reduce_only", "a deferred all-reduce"),
    ("keep_whole", "set_reshard_after_backward"),
    ("not_last", "set_is_last_backward"),
)
"""Flags, and what ablation calls them."""


# Flags that stay on the units until they are told otherwise, unlike fsdp1's ``no_sync``, which is a
# context manager.
class MicroBatches(Part, frozen=True, kw_only=True):
    """What fsdp2 is told from the first forward with ``sync=False`` to the backward after it."""

    all_reduce_only: bool = False
    """``set_requires_all_reduce(False)`` in place of ``set_requires_gradient_sync(False)``:
    gradients are reduced over the shards, and over the replicas later."""
    keep_whole: bool = False
    """``set_reshard_after_backward(False)``."""
    not_last: bool = False
    """``set_is_last_backward(False)``."""
    units: tuple[ModulePath, ...] = ()
    """FQNs of the units that are told, with ``recurse=False``; none for all of them."""

    def words(self) -> str:
        """``all-reduce deferred, kept whole``."""
        words = ["all-reduce deferred"] if self.all_reduce_only else []
        words += ["kept whole"] if self.keep_whole else []
        words += ["not the last"] if self.not_last else []
        words += [f"only {', '.join(path or 'the root' for path in self.units)}"] * bool(self.units)
        return ", ".join(words)


def defers_all_reduce(case: CaseSpec) -> bool:
    """Whether micro-batches reduce-scatter, and leave the all-reduce to a later one."""
    return case.micro_batches is not None and case.micro_batches.all_reduce_only


# ``foreach_reduce`` in fsdp/_fully_shard/_fsdp_collectives.py adds up what it has reduced of all
# parameters of a unit as one tensor, whichever of them it is made of.
@lru_cache(maxsize=64)
def deferred_apart(a: Anatomy) -> frozenset[str]:
    """Units whose gradients wait for their all-reduce while others of their parameters get some."""
    found: set[str] = set()
    waiting: dict[str, frozenset[str]] = {}
    synchronised = True
    for i, op, now in a.situations(0) if defers_all_reduce(a.case) else ():
        if op.waits:
            synchronised = op.reduces
        elif op.gives_gradients:
            for path, parameters in a.at(i).owned.items():
                given = now.given.intersection(p.fqn for p in parameters)
                if given and waiting.get(path, given) != given:
                    found.add(path)
                if given:
                    waiting[path] = given
            if synchronised:
                waiting.clear()
    return frozenset(found)


def some_defer(case: CaseSpec) -> bool:
    """Whether some units put off their reduction while others reduce."""
    return case.micro_batches is not None and bool(case.micro_batches.units)


def put_off(a: Anatomy, names: Set[str]) -> Set[str]:
    """The parameters, of some, whose gradients stay unreduced without synchronisation."""
    told = a.case.micro_batches
    if told is None or not told.units:
        return names
    return {name for name in names if a.owners[name] in told.units}


class MicroBatchesDimension(Dimension):
    """None, or what is left for later beside, or in place of, the gradients' reduction."""

    name = "micro_batches"
    features: ClassVar[Mapping[str, Feature]] = {
        "deferred": Feature(
            about="reduction, all_reduce: what no_sync puts off (fsdp2 only)",
            group="Training",
            values=("reduction", "all_reduce"),
            apis=("fsdp2",),
            excludes={"all_reduce": _SYNCHRONISED},
        ),
        "kept_after_backward": Feature(
            about="on when no_sync keeps units whole after backward, too (fsdp2 only)",
            group="Training",
            values=ON,
            apis=("fsdp2",),
            excludes={"on": _SYNCHRONISED},
        ),
        "deferring_units": Feature(
            about="all, some: the units of which no_sync puts anything off (fsdp2 only)",
            group="Training",
            values=("all", "some"),
            apis=("fsdp2",),
            excludes={"some": {**_SYNCHRONISED, "units": ("1",), "not_last_backward": ("on",)}},
        ),
        "not_last_backward": Feature(
            about="on when no_sync also says that its backward is not the last (fsdp2 only)",
            group="Training",
            values=ON,
            apis=("fsdp2",),
            excludes={"on": _SYNCHRONISED},
        ),
    }

    unit_features: ClassVar[Mapping[str, Feature]] = {
        "deferred_apart": Feature(
            about="on when a backward puts off the unit's all-reduce, and the next one gives "
            "gradients to other parameters of it (fsdp2 only)",
            group="Training",
            values=ON,
            apis=("fsdp2",),
        )
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Each of them."""
        if not a.fsdp1:
            told = a.case.micro_batches or MicroBatches()
            yield "deferred", "all_reduce" if told.all_reduce_only else "reduction"
            yield "kept_after_backward", on(told.keep_whole)
            yield "not_last_backward", on(told.not_last)
            yield "deferring_units", "some" if told.units else "all"

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Whether what waits for the all-reduce is of other parameters than what comes next."""
        if not a.fsdp1:
            yield "deferred_apart", on(path in deferred_apart(a))

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """Those that are asked for."""
        if case.micro_batches is not None:
            yield "no_sync", case.micro_batches.words()

    def check(self, a: Anatomy) -> None:
        """fsdp2 is told something, in a program with such micro-batches; replicas are there."""
        case, told = a.case, a.case.micro_batches
        at = "$.micro_batches"
        if told is None:
            return
        if a.fsdp1:
            raise CaseError("an option of fsdp2 alone", path=at)
        if told == MicroBatches():
            raise CaseError("leave it out where nothing is left for later", path=at)
        if all(op.reduces for op in case.program):
            raise CaseError("no forward has sync=False", path=at)
        if told.all_reduce_only and case.mesh is None:
            raise CaseError("without a mesh there is no all-reduce", path=f"{at}.all_reduce_only")
        for b in a.under_each_plan:
            check_names(told.units, b.units, f"{at}.units", "unit")
        # Units of one root share what it sets (``FSDPState._init_shared_state``).
        if told.units and told.not_last:
            raise CaseError("a backward is the last of all units or of none", path=f"{at}.not_last")

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """Nothing more than `no_sync`; one thing less."""
        told, replace = case.micro_batches, msgspec.structs.replace
        if told is None:
            return
        for name, words in _PLAINER:
            less = replace(told, **{name: False})
            if less != told:
                left = None if less == MicroBatches() else less
                yield Simpler(replace(case, micro_batches=left), words)
        if told.units:
            every = replace(told, units=())
            left = None if every == MicroBatches() else every
            yield Simpler(replace(case, micro_batches=left), "recurse=False")
        for path in told.units if len(told.units) > 1 else ():
            fewer = tuple(other for other in told.units if other != path)
            yield Simpler(replace(case, micro_batches=replace(told, units=fewer)))


def told(case: CaseSpec, *, rooted: bool) -> tuple[Value, Value]:
    """What fsdp2 is told before and after micro-batches that do not synchronise.

    ``rooted`` says that the model itself is a unit.
    """
    name, options = "steps.fsdp2.gradient_sync.tell", {}
    if case.micro_batches is not None and case.micro_batches.units:
        some = (Inside("model", path) if path else MODEL for path in case.micro_batches.units)
        flags = {k: v for k, v in msgspec.structs.asdict(case.micro_batches).items() if v is True}
        units = Items("tuple", tuple(some))
        name = "steps.fsdp2.micro_batches.tell_some"
        return call(name, units, False, **flags), call(name, units, True, **flags)
    if rooted and case.micro_batches == MicroBatches(all_reduce_only=True):
        name = ".set_requires_all_reduce"
    elif case.micro_batches is not None:
        name = "steps.fsdp2.micro_batches.tell"
        options = {k: v for k, v in msgspec.structs.asdict(case.micro_batches).items() if v}
    elif rooted:
        name = ".set_requires_gradient_sync"
    return call(name, MODEL, False, **options), call(name, MODEL, True, **options)


def kept_whole_after(case: CaseSpec) -> bool:
    """Whether units stay whole after a backward that does not synchronise."""
    return case.micro_batches is not None and case.micro_batches.keep_whole
