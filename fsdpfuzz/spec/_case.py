"""The case: one drawn example as plain frozen data."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from fsdpfuzz.spec._base import Name, Part, Seed
from fsdpfuzz.spec._model import Node
from fsdpfuzz.spec._plan import Checkpoint, Plan, Twin
from fsdpfuzz.spec._program import Inputs, Op, Optimizer

WorldSize = Annotated[int, Meta(ge=1, le=8)]
Probe = Literal["mem_tracker"]


class Tie(Part, frozen=True, kw_only=True):
    """``target`` is the same ``nn.Parameter`` object as ``source``; both are FQNs."""

    source: Name
    target: Name


class CaseSpec(Part, frozen=True, kw_only=True):
    """One training program on one model, wrapped in one way, on ``world_size`` ranks."""

    schema: Literal[1] = 1
    world_size: WorldSize
    seed: Seed = 0
    model: Node
    inputs: Inputs
    plan: Plan
    ties: tuple[Tie, ...] = ()
    frozen: tuple[Name, ...] = ()
    """FQNs of the parameters with ``requires_grad=False`` from the start."""
    held_out: tuple[Name, ...] = ()
    """FQNs of the parameters that require grad and are kept from the optimizer."""
    checkpoints: Annotated[tuple[Checkpoint, ...], Meta(max_length=64)] = ()
    optimizer: Optimizer | None = Optimizer()
    program: Annotated[tuple[Op, ...], Meta(max_length=256)]
    loss: Literal["projection", "sum"] = "projection"
    """A fixed random projection of the output, or its plain sum (as in the documents)."""
    debug_level: Literal["OFF", "INFO", "DETAIL"] = "OFF"
    """``torch.distributed.set_debug_level``."""
    twins: Annotated[tuple[Twin, ...], Meta(max_length=8)] = ()
    probes: tuple[Probe, ...] = ()

    @property
    def api(self) -> Literal["fsdp1", "fsdp2"]:
        """The API under test."""
        return "fsdp1" if type(self.plan).__name__ == "Fsdp1Plan" else "fsdp2"
