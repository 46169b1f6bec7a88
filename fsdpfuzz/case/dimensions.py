"""All that a case can vary in. Naming a dimension here is what registers it."""

from __future__ import annotations

from fsdpfuzz.case.checkpoints import CheckpointsDimension
from fsdpfuzz.case.communication import CommunicationDimension
from fsdpfuzz.case.debug_level import DebugLevelDimension
from fsdpfuzz.case.dimension import Dimension
from fsdpfuzz.case.divide_factor import DivideFactorDimension
from fsdpfuzz.case.extensions import ExtensionsDimension
from fsdpfuzz.case.finalization import FinalizationDimension
from fsdpfuzz.case.forward_methods import ForwardMethodsDimension
from fsdpfuzz.case.freezing import FreezingDimension
from fsdpfuzz.case.grad_scaler import GradScalerDimension
from fsdpfuzz.case.hazards import HAZARDS
from fsdpfuzz.case.inputs import InputsDimension
from fsdpfuzz.case.keep_unsharded_storage import KeepUnshardedStorageDimension
from fsdpfuzz.case.keyword_input import KeywordInputDimension
from fsdpfuzz.case.lag import LagDimension
from fsdpfuzz.case.loss import LossDimension
from fsdpfuzz.case.masked import MaskedDimension
from fsdpfuzz.case.mem_tracker import MemTrackerDimension
from fsdpfuzz.case.mesh import MeshDimension
from fsdpfuzz.case.meta_init import MetaInitDimension
from fsdpfuzz.case.micro_batches import MicroBatchesDimension
from fsdpfuzz.case.optimizer import OptimizerDimension
from fsdpfuzz.case.program import ProgramDimension
from fsdpfuzz.case.recovery import RecoveryDimension
from fsdpfuzz.case.reduce_scatter import ReduceScatterDimension
from fsdpfuzz.case.reshard_set import ReshardSetDimension
from fsdpfuzz.case.share_comm_ctx import ShareCommCtxDimension
from fsdpfuzz.case.spec import CaseSpec
from fsdpfuzz.case.spmd_mesh import SpmdMeshDimension
from fsdpfuzz.case.stored_low import StoredLowDimension
from fsdpfuzz.case.strides import StridesDimension
from fsdpfuzz.case.structure import StructureDimension
from fsdpfuzz.case.tensor_parallel import TensorParallelDimension
from fsdpfuzz.case.ties import TiesDimension
from fsdpfuzz.case.units import OPTIONS
from fsdpfuzz.case.variants import VariantsDimension
from fsdpfuzz.case.world_size import WorldSizeDimension, moved
from fsdpfuzz.case.wrap import WrapDimension

_ON_ANY_RANKS: tuple[Dimension, ...] = (
    DebugLevelDimension(),
    InputsDimension(),
    StructureDimension(),
    TiesDimension(),
    WrapDimension(),
    *OPTIONS,
    FreezingDimension(),
    CheckpointsDimension(),
    ProgramDimension(),
    RecoveryDimension(),
    VariantsDimension(),
    MemTrackerDimension(),
    ForwardMethodsDimension(),
    MeshDimension(),
    MicroBatchesDimension(),
    DivideFactorDimension(),
    OptimizerDimension(),
    LossDimension(),
    MaskedDimension(),
    ReduceScatterDimension(),
    CommunicationDimension(),
    KeepUnshardedStorageDimension(),
    FinalizationDimension(),
    MetaInitDimension(),
    KeywordInputDimension(),
    TensorParallelDimension(),
    StridesDimension(),
    GradScalerDimension(),
    StoredLowDimension(),
    LagDimension(),
    ReshardSetDimension(),
    SpmdMeshDimension(),
    ExtensionsDimension(),
    ShareCommCtxDimension(),
    *HAZARDS,
)
DIMENSIONS: tuple[Dimension, ...] = (*_ON_ANY_RANKS, WorldSizeDimension(_ON_ANY_RANKS))
"""In the order in which they are drawn and checked: each builds on those before it."""


def on_ranks(case: CaseSpec, size: int) -> CaseSpec:
    """The case on another number of ranks; it need not be sound there."""
    return moved(DIMENSIONS, case, size)
