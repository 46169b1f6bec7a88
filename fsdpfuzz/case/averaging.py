"""How the plain model averages gradients over the ranks, and which it forgets before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fsdpfuzz.case.lacking import may_lack_grads
from fsdpfuzz.case.recipe import Do, Statement, Value, Variable, Who, call, literal
from fsdpfuzz.case.strides import transposed
from fsdpfuzz.case.units import lies_on_cpu

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


def average(a: Anatomy, parameters: Value, who: Who = "both") -> Do:
    """Of parameters, some of which may have no gradient or one that is not contiguous."""
    told = {"lacking": may_lack_grads(a), "strided": bool(transposed(a))}
    options: dict[str, Value] = {name: True for name, value in told.items() if value}
    return Do(call=call("steps.averaging.average", parameters, **options), who=who)


_NAMED, _ASIDE = Variable("named"), Variable("aside")


def forget_replaced(a: Anatomy) -> Iterator[Statement]:
    """Before a backward: puts aside, in the plain model, gradients that fsdp1 replaces.

    It documents that it does not accumulate reduced gradients under CPU offload
    (``FullyShardedDataParallel``, "Limitations").
    """
    if units := _offloaded(a):
        names = literal(tuple(name for own in units for name in own))
        aside = call("steps.averaging.put_aside", _NAMED, names)
        yield Do(call=aside, into=(_ASIDE,), who="averaging")


def keep_others(a: Anatomy) -> Iterator[Statement]:
    """Behind it: units that it gave nothing still have theirs, in FSDP and in the plain model."""
    if units := _offloaded(a):
        kept = call("steps.averaging.put_back", _NAMED, _ASIDE, literal(units))
        yield Do(call=kept, who="averaging")


def _offloaded(a: Anatomy) -> tuple[tuple[str, ...], ...]:
    """The parameters of each offloaded unit of fsdp1, by their first names."""
    if not a.fsdp1:
        return ()
    own = ([p.fqn for p in a.owned[path]] for path, unit in a.options.items() if lies_on_cpu(unit))
    return tuple(tuple(a.canonical_names(names)) for names in own if names)
