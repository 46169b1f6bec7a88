"""What FSDP and torch promise of a case: bytes, order errors, reshards, state dicts, rounding.

Arithmetic on the case alone. Invariants hold what the ranks saw against it.
"""

from __future__ import annotations

from fsdpfuzz.expect.bytes import (
    grad_bytes,
    grads_known,
    kept_bytes,
    managed_bytes,
    set_bytes,
    settled,
    shard_bytes,
    steps_after_backward,
    unit_numel,
    waiting_bytes,
    whole_bytes,
)
from fsdpfuzz.expect.collectives import traffic
from fsdpfuzz.expect.offloads import checkpoint_entries, offload_entries
from fsdpfuzz.expect.order import Deviation, order_error, order_warnings, parting, rank_in_warnings
from fsdpfuzz.expect.output_dtype import output_dtype
from fsdpfuzz.expect.reshards import backward_reshards, may_stay_whole
from fsdpfuzz.expect.rounding import (
    ABSOLUTE,
    DIVERGED,
    FLOAT32_EPS,
    FLOOR_FACTOR,
    HEADROOM,
    LOWER_FLOOR,
    STABLE,
    adaptive_rounding,
    adaptive_wobble,
    alike,
    between_variants,
    beyond_baseline,
    carried_by_steps,
    measured,
    rounding,
    unlike,
)
from fsdpfuzz.expect.state_dict import is_cut, optional_keys, state_keys
from fsdpfuzz.expect.traffic import ANY, KINDS, WHOLE, Bounds, Traffic, collective
from fsdpfuzz.expect.variants import same_arithmetic

__all__ = [
    "ABSOLUTE",
    "ANY",
    "DIVERGED",
    "FLOAT32_EPS",
    "FLOOR_FACTOR",
    "HEADROOM",
    "KINDS",
    "LOWER_FLOOR",
    "STABLE",
    "WHOLE",
    "Bounds",
    "Deviation",
    "Traffic",
    "adaptive_rounding",
    "adaptive_wobble",
    "alike",
    "backward_reshards",
    "between_variants",
    "beyond_baseline",
    "carried_by_steps",
    "checkpoint_entries",
    "collective",
    "grad_bytes",
    "grads_known",
    "is_cut",
    "kept_bytes",
    "managed_bytes",
    "may_stay_whole",
    "measured",
    "offload_entries",
    "optional_keys",
    "order_error",
    "order_warnings",
    "output_dtype",
    "parting",
    "rank_in_warnings",
    "rounding",
    "same_arithmetic",
    "set_bytes",
    "settled",
    "shard_bytes",
    "state_keys",
    "steps_after_backward",
    "traffic",
    "unit_numel",
    "unlike",
    "waiting_bytes",
    "whole_bytes",
]
