"""What a forward under ``torch.inference_mode`` leaves for those that train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.hazards.few_elements import lacking_somewhere
from fsdpfuzz.case.operations.forward import begun_in_inference
from fsdpfuzz.case.operations.requires_grad import unfrozen_behind_inference
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.units import lies_on_cpu
from fsdpfuzz.case.units.precision import computed_in
from fsdpfuzz.case.units.sharding import is_whole

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


class InferenceDimension(Hazard):
    """Memory and views that were made under ``torch.inference_mode`` while training goes on."""

    name = "inference"
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "inference_memory": Feature(
            about="off, on, one shard (of a unit that fsdp2 copies, as it has one shard): when the "
            "memory into which a unit is gathered or cast, or gradients are offloaded, comes to be "
            "under torch.inference_mode",
            group="Training",
            values=("off", "on", "one shard"),
        ),
        "recomputed_product": Feature(
            about="on when a checkpoint that is not reentrant recomputes a product with a "
            "parameter of the unit, by * or @: a gain, a matrix, an RMSNorm",
            group="Training",
            values=ON,
        ),
    }

    parameter_features: ClassVar[Mapping[str, Feature]] = {
        "unfrozen_in_inference": Feature(
            about="on when requires_grad is set of a parameter of which a rank has no element, and "
            "a forward under torch.inference_mode was the last to shard its unit (fsdp1 only)",
            group="Training",
            # Of few cases, which are known to fail: no pair is waited for.
            values=("off",),
            open=True,
            apis=("fsdp1",),
        ),
    }

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Of one unit; what fsdp1 neither gathers nor casts nor offloads has no such memory."""
        bare, unit = not a.owned[path], a.options[path]
        kept = computed_in(unit) is None and not lies_on_cpu(unit)
        bare |= a.fsdp1 and is_whole(a, path) and kept
        # ``FSDPParamGroup.wait_for_unshard`` in fsdp/_fully_shard/_fsdp_param_group.py.
        way = "one shard" if not a.fsdp1 and a.shards(path) == 1 else "on"
        yield "inference_memory", way if path in begun_in_inference(a) and not bare else "off"
        own = set(a.names_in(path))
        products = [
            place.path
            for place in a.places
            if place.node is not None and place.node.multiplies()
            if any(p.fqn in own for p in place.parameters)
        ]
        again = (c.path for c in a.case.checkpoints if c.recomputes and not c.reentrant)
        yield "recomputed_product", on(any(within(p, at) for at in again for p in products))

    # ``FlatParamHandle._use_sharded_views`` in fsdp/_flat_param.py hands such a parameter an empty
    # tensor, which it makes anew each time.
    def parameter_values(self, a: Anatomy, fqn: str) -> Iterator[tuple[str, str]]:
        """Of one parameter."""
        if a.fsdp1:
            told = a.canonical(fqn) in unfrozen_behind_inference(a)
            yield "unfrozen_in_inference", on(told and a.canonical(fqn) in lacking_somewhere(a))
