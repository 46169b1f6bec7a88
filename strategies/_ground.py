"""Ground that a case enters on purpose or not at all: documented misuse, known defects.

Most draws stay off it, since a case that FSDP refuses, or that breaks in a way already
understood, tells nothing new and costs more than one that trains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fsdpfuzz.spec import (
    CaseSpec,
    case_places,
    common_root,
    foreseen_rejections,
    mixed_units,
    split_ties,
    units_among,
)
from fsdpfuzz.strategies import _leave as leave
from fsdpfuzz.strategies import _order_ground as order
from fsdpfuzz.strategies import _state_ground as state
from fsdpfuzz.strategies import _steer as steer
from fsdpfuzz.strategies._choose import Draw


def _stay(_: Draw, case: CaseSpec) -> CaseSpec:
    return case


@dataclass(frozen=True, slots=True)
class Ground:
    """A kind of case with a way in and a way out.

    ``enter`` makes a drawn case one of the kind where the model allows it; ``leave`` is
    the nearest case that is none, and returns others as they are. ``needs`` names what
    the model must have for that: "tie" or "scalar".
    """

    why: str
    holds: Callable[[CaseSpec], bool]
    enter: Callable[[Draw, CaseSpec], CaseSpec] = _stay
    leave: Callable[[CaseSpec], CaseSpec] = lambda case: case
    needs: str = ""


def _refused(name: str) -> Callable[[CaseSpec], bool]:
    return lambda case: any(rejection.name == name for rejection in foreseen_rejections(case))


def _tie_without_common_root(case: CaseSpec) -> bool:
    if not case.ties:
        return False
    units = units_among(case_places(case), case.plan)
    return any(not common_root(units, a, b) for a, b in split_ties(case))


def _mix(draw: Draw, case: CaseSpec) -> CaseSpec:
    return steer.with_orig_params(steer.mix_a_unit(draw, case), False)


def _unmix(case: CaseSpec) -> CaseSpec:
    return steer.with_orig_params(case, True) if case.frozen and mixed_units(case) else case


MISUSE: dict[str, Ground] = {
    "fsdp1_mixed_requires_grad": Ground(
        why="frozen and trainable parameters in one unit with use_orig_params=False",
        holds=_refused("fsdp1_mixed_requires_grad"),
        enter=_mix,
        leave=_unmix,
    ),
    "fsdp1_mixed_options": Ground(
        why="use_orig_params differs between units",
        holds=_refused("fsdp1_mixed_options"),
        enter=steer.mix_orig_params,
    ),
    "fsdp1_scalar_parameter": Ground(
        why="a 0-dim parameter", holds=_refused("fsdp1_scalar_parameter"), needs="scalar"
    ),
    "fsdp2_scalar_parameter": Ground(
        why="a 0-dim parameter", holds=_refused("fsdp2_scalar_parameter"), needs="scalar"
    ),
    "fsdp2_tie_across_units": Ground(
        why="a parameter tied across two units",
        holds=_refused("fsdp2_tie_across_units"),
        enter=lambda draw, case: steer.split_a_tie(draw, steer.wrap_root(case)),
        leave=steer.join_ties,
        needs="tie",
    ),
}
"""Documented rejections that are drawn on purpose, by their names in ``spec.REJECTIONS``."""

GROUND: dict[str, Ground] = {
    "fsdp1_tie_across_units": Ground(
        why="unclear size errors, or silently untied weights",
        holds=lambda case: bool(case.ties) and bool(split_ties(case)),
        enter=steer.split_a_tie,
        leave=steer.join_ties,
        needs="tie",
    ),
    "fsdp2_tie_across_roots": Ground(
        why="no common root unit that could notice it: silently untied weights",
        holds=_tie_without_common_root,
        leave=steer.join_ties,
        needs="tie",
    ),
    "fsdp1_single_element_accumulation": Ground(
        why="a unit of one element: gradients reduced twice before a step are wrong",
        holds=leave.accumulates_a_single_element,
        leave=leave.accumulate_locally,
    ),
    "fsdp1_kept_quiet_unit": Ground(
        why="SHARD_GRAD_OP and no gradient: the unit stays whole after backward",
        holds=leave.has_kept_quiet_unit,
        leave=leave.reshard_quiet_units,
    ),
    "fsdp1_cut_reentrant": Ground(
        why="reentrant checkpointing of a part of a unit: freed before its last use",
        holds=leave.has_cut_reentrant,
        leave=leave.without_cut_reentrant,
    ),
    "fsdp2_repeated_reentrant": Ground(
        why="reentrant checkpointing of a module that is called again: wrong gradients",
        holds=leave.repeats_reentrant,
        leave=leave.without_cut_reentrant,
    ),
    "fsdp1_identity_unit": Ground(
        why="a unit that returns its input: an assertion about FSDP's own state",
        holds=leave.has_identity_unit,
        leave=leave.without_identity_units,
    ),
    "fsdp1_no_shard_prefetch_recomputed": Ground(
        why="NO_SHARD, original parameters, forward prefetch, recomputation: gradients get lost",
        holds=leave.prefetches_into_recomputed,
        leave=leave.without_forward_prefetch,
    ),
    "fsdp1_offloaded_full_state": Ground(
        why="a full state dict with CPU offload, of a model on the CPU: storages of size 0",
        holds=state.offloads_full_state,
        leave=state.without_offload,
    ),
    "fsdp1_local_state_of_originals": Ground(
        why="a local state dict with use_orig_params: saved with keys that no load accepts",
        holds=state.takes_local_state_of_originals,
        leave=state.with_sharded_state,
    ),
    "fsdp1_no_shard_quiet_unit_state": Ground(
        why="a unit under NO_SHARD without gradient loses its parameters: to save, to unfreeze",
        holds=state.needs_unsharded_quiet_unit,
        leave=state.with_sharded_quiet_units,
    ),
    "fsdp1_order_error_of_originals": Ground(
        why="use_orig_params: the error on the order fails for lack of a parameter's name",
        holds=order.errs_on_originals,
        leave=order.with_flat_parameters,
    ),
    "fsdp1_hooks_of_a_dropped_forward": Ground(
        why="a forward without backward, then another requires_grad: an assertion on its hooks",
        holds=order.drops_before_a_change,
        leave=order.without_drops,
    ),
    "fsdp2_changed_while_whole": Ground(
        why="requires_grad changed while a forward left the root whole: the shards don't follow",
        holds=order.changes_while_whole,
        leave=order.without_lone_forwards,
    ),
    "fsdp2_tracked_idle_unit": Ground(
        why="the memory tracker looks for the whole parameters of a unit that was never called",
        holds=state.tracks_idle_unit,
        leave=state.untracked,
    ),
}
"""Known defects, by the names that ``cases(avoid=...)`` takes; the API comes first."""


def known_ground(case: CaseSpec) -> tuple[str, ...]:
    """Names of the known defects in `GROUND` on whose ground ``case`` stands."""
    return tuple(
        name for name, ground in GROUND.items() if name.startswith(case.api) and ground.holds(case)
    )
