"""The case: one drawn example as plain frozen data."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from fsdpfuzz.case.base import ModulePath, ParameterName, Part, Ranks, Seed
from fsdpfuzz.case.checkpoints import Checkpoint
from fsdpfuzz.case.communication import Communication
from fsdpfuzz.case.debug_level import DebugLevel
from fsdpfuzz.case.dimension import Api
from fsdpfuzz.case.divide_factor import DivideFactor
from fsdpfuzz.case.extensions import Extension
from fsdpfuzz.case.finalization import Finalization
from fsdpfuzz.case.grad_scaler import GradScaler
from fsdpfuzz.case.inputs import Inputs
from fsdpfuzz.case.loss import Loss
from fsdpfuzz.case.mem_tracker import Probe
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.meta_init import MetaInit
from fsdpfuzz.case.micro_batches import MicroBatches
from fsdpfuzz.case.modules import Model
from fsdpfuzz.case.named_axes import SpmdMesh
from fsdpfuzz.case.operations import Op
from fsdpfuzz.case.optimizer import Optimizer
from fsdpfuzz.case.reduce_scatter import ReduceScatter
from fsdpfuzz.case.tensor_parallel import TensorParallel
from fsdpfuzz.case.ties import Tie
from fsdpfuzz.case.variants import Variant
from fsdpfuzz.case.wrap import Fsdp1Plan, Plan


class CaseSpec(Part, frozen=True, kw_only=True):
    """One training program on one model, wrapped in one way, on ``world_size`` ranks."""

    # A default, so that it is no part of the digest; `as_document` puts it into files.
    schema: Literal[1] = 1
    world_size: Ranks
    seed: Seed = 0
    model: Model
    inputs: Inputs
    plan: Plan
    ties: tuple[Tie, ...] = ()
    frozen: tuple[ParameterName, ...] = ()
    """FQNs of the parameters with ``requires_grad=False`` from the start."""
    held_out: tuple[ParameterName, ...] = ()
    """FQNs of the parameters that require grad and are kept from the optimizer."""
    stored_low: tuple[ModulePath, ...] = ()
    """FQNs of the frozen linear layers that are stored in bfloat16, beside float32 elsewhere."""
    checkpoints: Annotated[tuple[Checkpoint, ...], Meta(max_length=64)] = ()
    optimizer: Optimizer | None = Optimizer()
    program: Annotated[tuple[Op, ...], Meta(max_length=256)]
    loss: Loss = "projection"
    """A fixed random projection of the output, or its plain sum (as in the documents)."""
    debug_level: DebugLevel = "OFF"
    """``torch.distributed.set_debug_level``."""
    twins: Annotated[tuple[Variant, ...], Meta(max_length=8)] = ()
    """Other ways to run the same training; "twins" is their name in saved cases."""
    probes: tuple[Probe, ...] = ()
    mesh: Mesh | None = None
    """Replicas and shards; None for all ranks in one dimension."""
    micro_batches: MicroBatches | None = None
    """What ``sync=False`` leaves for later (fsdp2); None for the gradients' reduction alone."""
    divide_factor: DivideFactor | None = None
    """None for the number of ranks (fsdp2)."""
    reduce_scatter: ReduceScatter | None = None
    """How gradients are reduced (fsdp2); None for PyTorch's defaults."""
    communication: Communication | None = None
    """How units gather and reduce (fsdp2); None for PyTorch's own ways."""
    keep_unsharded_storage: bool = False
    """``set_keep_unsharded_storage`` (fsdp2)."""
    finalization: Finalization = "automatic"
    """How a backward is finished (fsdp2)."""
    meta_init: MetaInit | None = None
    """What FSDP gets on the meta device, and how it is materialised; None for nothing."""
    tensor_parallel: TensorParallel | None = None
    """What is cut over one axis of ranks before units are sharded over the other (fsdp2)."""
    keyword_input: bool = False
    """What the program calls gets its input by keyword: ``model(x=x)``."""
    grad_scaler: GradScaler | None = None
    """What losses and steps go through; None for nothing."""
    lag: bool = False
    """Whether computation of FSDP's model begins late, on a GPU."""
    spmd_mesh: SpmdMesh | None = None
    """How ``fully_shard`` is told of a mesh by its names (fsdp2); None for a mesh of its own."""
    extensions: Annotated[tuple[Extension, ...], Meta(max_length=64)] = ()
    """Parameters that say what is gathered of them (fsdp2)."""
    share_comm_ctx: bool = False
    """Whether roots share their streams (fsdp2)."""

    @property
    def api(self) -> Api:
        """The API under test."""
        return "fsdp1" if isinstance(self.plan, Fsdp1Plan) else "fsdp2"
