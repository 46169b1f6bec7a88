"""Units and shards with hardly an element, or with none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.hazards.no_gradient import unfrozen
from fsdpfuzz.case.strides import saved_as, without_elements
from fsdpfuzz.case.units.use_orig_params import held_on

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


# ``FlatParamHandle.prepare_gradient_for_backward`` in fsdp/_flat_param.py tells a reduced gradient
# from one that is not yet by its size, and with one element both have the same.
def single_element_units(a: Anatomy) -> tuple[str, ...]:
    """Units that manage one element in all, so that a shard is as large as the whole."""
    return tuple(path for path, owned in a.owned.items() if sum(p.numel for p in owned) == 1)


# Such a rank has no gradient and no optimizer state of the parameter, and where code asks its own
# optimizer what there is (``_unflatten_optim_state_dict`` in checkpoint/state_dict.py), it leaves
# out collectives that the others take part in.
@lru_cache(maxsize=64)
def lacking_somewhere(a: Anatomy) -> frozenset[str]:
    """Parameters of which a rank has no element, though it has elements of others.

    Those of fsdp1's units with ``use_orig_params``, which cut what they manage as one. Only
    parameters that the optimizer steps count, those that are unfrozen in mid-program too.
    """
    found: set[str] = set()
    left_out = (a.frozen - unfrozen(a)).union(a.case.held_out)
    for rank in range(a.case.world_size):
        held = held_on(a, rank)
        stepped = {fqn: numel for fqn, numel in held.items() if fqn not in left_out}
        if any(stepped.values()):
            found.update(fqn for fqn, numel in stepped.items() if not numel)
    return frozenset(found)


class FewElementsDimension(Hazard):
    """How few elements a unit manages, and of what a rank has none."""

    name = "few_elements"
    features: ClassVar[Mapping[str, Feature]] = {
        "single_element_unit": Feature(
            about="on when a unit manages one element in all", group="Wrapping", values=ON
        ),
        "empty_parameter": Feature(
            about="off, on, saved, shards: whether a parameter has no element, and how it is "
            "saved: its optimizer state, in shards",
            group="Parameters",
            # In few models, which are known to fail under fsdp2: no pair is waited for.
            values=("off",),
            open=True,
        ),
    }
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "elements": Feature(
            about="0, 1, few (fewer than shards), many: elements that the unit manages",
            group="Wrapping",
            values=("0", "1", "few", "many"),
        ),
        "empty_parameter": Feature(
            about="no, frozen, trained (any is): parameters of the unit that have no element",
            group="Parameters",
            values=("no", "frozen", "trained"),
        ),
    }
    parameter_features: ClassVar[Mapping[str, Feature]] = {
        "lacking": Feature(
            about="on when a rank has no element of the parameter, but of others: with "
            "use_orig_params (fsdp1 only)",
            group="Parameters",
            values=ON,
            apis=("fsdp1",),
        ),
        "empty": Feature(
            about="on when the parameter has no element", group="Parameters", values=ON
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether any unit manages one alone."""
        yield "single_element_unit", on(bool(single_element_units(a)))
        yield "empty_parameter", saved_as(a) if without_elements(a) else "off"

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """How many the unit manages."""
        numel = sum(p.numel for p in a.owned[path])
        few = "few" if numel < a.shards(path) else "many"
        yield "elements", str(numel) if numel < 2 else few
        empty = {p.fqn for p in a.owned[path] if not p.numel}
        trained = empty - a.frozen | empty & unfrozen(a)
        yield "empty_parameter", "trained" if trained else "frozen" if empty else "no"

    def parameter_values(self, a: Anatomy, fqn: str) -> Iterator[tuple[str, str]]:
        """Whether a rank has none of it."""
        yield "empty", on(not a.by_fqn[fqn].numel)
        if a.fsdp1:
            yield "lacking", on(a.canonical(fqn) in lacking_somewhere(a))
