"""The options of a unit: a file each. To add one, write its file and name it in `OPTIONS`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fsdpfuzz.case.units.backward_prefetch import BackwardPrefetch
from fsdpfuzz.case.units.base import Option
from fsdpfuzz.case.units.cpu_offload import CpuOffload, lies_on_cpu
from fsdpfuzz.case.units.forward_prefetch import ForwardPrefetch
from fsdpfuzz.case.units.grouped import Grouped
from fsdpfuzz.case.units.ignored import Ignored
from fsdpfuzz.case.units.ignored_parameters import IgnoredParameters
from fsdpfuzz.case.units.limit_all_gathers import LimitAllGathers
from fsdpfuzz.case.units.param_dtype_override import ParamDtypeOverride
from fsdpfuzz.case.units.precision import Precision, PrecisionOption
from fsdpfuzz.case.units.prefetched_in_backward import PrefetchedInBackward
from fsdpfuzz.case.units.prefetched_in_forward import PrefetchedInForward
from fsdpfuzz.case.units.replicated import Replicated
from fsdpfuzz.case.units.reshard_after_forward import ReshardAfterForward
from fsdpfuzz.case.units.shard_placement import Placement, ShardPlacement
from fsdpfuzz.case.units.sharding import HYBRID, Sharding, ShardingOption
from fsdpfuzz.case.units.use_orig_params import UseOrigParams

if TYPE_CHECKING:
    from fsdpfuzz.case.units.configured import Configuration
    from fsdpfuzz.case.wrap import Unit

OPTIONS: tuple[Option, ...] = (
    Grouped(),
    ShardingOption(),
    UseOrigParams(),
    BackwardPrefetch(),
    ForwardPrefetch(),
    LimitAllGathers(),
    ReshardAfterForward(),
    PrecisionOption(),
    CpuOffload(),
    Ignored(),
    IgnoredParameters(),
    ShardPlacement(),
    PrefetchedInForward(),
    PrefetchedInBackward(),
    ParamDtypeOverride(),
    Replicated(),
)
"""In the order in which they are told."""


def options_read(kind: type[Unit], told: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a unit of which FSDP itself tells; see `Option.read`."""
    found = {o.name: o.read(told) for o in OPTIONS if o.name in kind.__struct_fields__}
    return {name: value for name, value in found.items() if value is not None}


def options_configured(kind: type[Unit], config: Configuration) -> dict[str, Any]:
    """The fields of all units under a configuration; see `Option.configured`."""
    return {o.name: o.configured(kind, config) for o in OPTIONS if o.name in kind.__struct_fields__}


__all__ = [
    "HYBRID",
    "OPTIONS",
    "Option",
    "Placement",
    "Precision",
    "Sharding",
    "lies_on_cpu",
    "options_configured",
    "options_read",
]
