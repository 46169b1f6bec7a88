"""Structures of a case where FSDP's rules for units are easily broken: a file for each kind.

Each is a fact about the case alone. Predicates of known defects name them, and so do what FSDP
is held to where they change what it can promise.
"""

from __future__ import annotations

from fsdpfuzz.case.dimension import Dimension
from fsdpfuzz.case.hazards.changed_alone import ChangedAloneDimension
from fsdpfuzz.case.hazards.changed_views import ChangedViewsDimension
from fsdpfuzz.case.hazards.empty_experts import EmptyExpertsDimension
from fsdpfuzz.case.hazards.few_elements import FewElementsDimension, single_element_units
from fsdpfuzz.case.hazards.freed import FreedDimension
from fsdpfuzz.case.hazards.frozen_in_no_sync import FrozenInNoSyncDimension
from fsdpfuzz.case.hazards.hooked_memory import HookedMemoryDimension
from fsdpfuzz.case.hazards.inference import InferenceDimension
from fsdpfuzz.case.hazards.kept_norm import KeptNormDimension
from fsdpfuzz.case.hazards.lost_change import LostChangeDimension
from fsdpfuzz.case.hazards.lost_state import LostStateDimension
from fsdpfuzz.case.hazards.moved_hooks import MovedHooksDimension
from fsdpfuzz.case.hazards.nested_names import NestedNamesDimension
from fsdpfuzz.case.hazards.no_gradient import (
    NoGradientDimension,
    kept_whole,
    kept_without_gradient,
    units_without_gradient,
)
from fsdpfuzz.case.hazards.offloaded_input import OffloadedInputDimension
from fsdpfuzz.case.hazards.own_state import OwnStateDimension
from fsdpfuzz.case.hazards.resharded_gather import ReshardedGatherDimension
from fsdpfuzz.case.hazards.run_through import RunThroughDimension
from fsdpfuzz.case.hazards.second_graph import SecondGraphDimension
from fsdpfuzz.case.hazards.set_early import SetEarlyDimension
from fsdpfuzz.case.hazards.set_on_fewer import SetOnFewerDimension
from fsdpfuzz.case.hazards.shared_order import SharedOrderDimension
from fsdpfuzz.case.hazards.side_loss import SideLossDimension
from fsdpfuzz.case.hazards.stepped_whole import SteppedWholeDimension
from fsdpfuzz.case.hazards.unfinished import UnfinishedDimension
from fsdpfuzz.case.hazards.unit_calls import UnitCallsDimension, called_units, identity_units
from fsdpfuzz.case.hazards.unrestored import UnrestoredDimension
from fsdpfuzz.case.hazards.vain_gathers import VainGathersDimension

HAZARDS: tuple[Dimension, ...] = (
    FewElementsDimension(),
    FreedDimension(),
    InferenceDimension(),
    NoGradientDimension(),
    UnitCallsDimension(),
    LostStateDimension(),
    UnfinishedDimension(),
    ChangedViewsDimension(),
    SetEarlyDimension(),
    SteppedWholeDimension(),
    UnrestoredDimension(),
    OwnStateDimension(),
    SideLossDimension(),
    OffloadedInputDimension(),
    VainGathersDimension(),
    SetOnFewerDimension(),
    SharedOrderDimension(),
    NestedNamesDimension(),
    MovedHooksDimension(),
    LostChangeDimension(),
    HookedMemoryDimension(),
    EmptyExpertsDimension(),
    FrozenInNoSyncDimension(),
    RunThroughDimension(),
    SecondGraphDimension(),
    ChangedAloneDimension(),
    KeptNormDimension(),
    ReshardedGatherDimension(),
)

__all__ = [
    "HAZARDS",
    "called_units",
    "identity_units",
    "kept_whole",
    "kept_without_gradient",
    "single_element_units",
    "units_without_gradient",
]
