"""How a model is wrapped: units, each with its own sharding options, and checkpointing."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from fsdpfuzz.spec._base import Name, Part
from fsdpfuzz.spec._model import NodeKind

Dtype = Literal["float32", "float16", "bfloat16"]
Sharding = Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]
CheckpointKind = Literal["wrapper", "function", "composable", "offload", "function_offload"]


class Precision(Part, frozen=True, kw_only=True):
    """``MixedPrecision`` (fsdp1) or ``MixedPrecisionPolicy`` (fsdp2); None leaves a dtype as is."""

    param: Dtype | None = None
    reduce: Dtype | None = None
    buffer: Dtype | None = None
    """fsdp1 only."""


class Fsdp1Unit(Part, frozen=True, kw_only=True):
    """Arguments of one ``FullyShardedDataParallel`` call; the defaults are PyTorch's own."""

    path: Name
    """FQN of the module that becomes a unit; empty for the root."""
    sharding: Sharding = "FULL_SHARD"
    use_orig_params: bool = False
    backward_prefetch: Literal["BACKWARD_PRE", "BACKWARD_POST"] | None = "BACKWARD_PRE"
    forward_prefetch: bool = False
    limit_all_gathers: bool = True
    cpu_offload: bool = False
    precision: Precision | None = None
    ignored: tuple[Name, ...] = ()
    """FQNs of the modules passed as ``ignored_modules``."""


class Fsdp2Unit(Part, frozen=True, kw_only=True):
    """Arguments of one ``fully_shard`` call; the defaults are PyTorch's own."""

    path: Name
    reshard_after_forward: bool | Annotated[int, Meta(ge=1, le=8)] | None = None
    cpu_offload: bool = False
    precision: Precision | None = None
    ignored: tuple[Name, ...] = ()
    """FQNs of the modules whose parameters are passed as ``ignored_params``."""


class Fsdp1Plan(Part, tag="fsdp1", tag_field="api", frozen=True, kw_only=True):
    """fsdp1: units and how FSDP is told of them.

    ``nested``: each unit wrapped by hand, innermost first. ``custom_policy``: one call on
    the root with a ``CustomPolicy`` that names the other units and their options.
    ``module_classes``: one call on the root with ``ModuleWrapPolicy`` over the classes of
    the node kinds in ``classes``; then ``units`` holds the root alone.
    """

    units: Annotated[tuple[Fsdp1Unit, ...], Meta(min_length=1, max_length=64)]
    wrap: Literal["nested", "custom_policy", "module_classes"] = "nested"
    classes: tuple[NodeKind, ...] = ()


class Fsdp2Plan(Part, tag="fsdp2", tag_field="api", frozen=True, kw_only=True):
    """fsdp2: modules that get ``fully_shard``, applied innermost first."""

    units: Annotated[tuple[Fsdp2Unit, ...], Meta(min_length=1, max_length=64)]


Plan = Fsdp1Plan | Fsdp2Plan


class Checkpoint(Part, frozen=True, kw_only=True):
    """Activation checkpointing at one module.

    ``wrapper``: ``checkpoint_wrapper``; ``offload``: ``offload_wrapper`` (activations to
    the CPU, nothing recomputed); ``composable``: the hook-based ``checkpoint``;
    ``function``: the caller calls the module through ``torch.utils.checkpoint``;
    ``function_offload``: the same under ``save_on_cpu``.
    """

    path: Name
    kind: CheckpointKind = "wrapper"
    reentrant: bool = False
    side: Literal["inside", "around"] = "inside"
    """Where the module is also a unit: FSDP(checkpoint(m)) or checkpoint(FSDP(m))."""


class Twin(Part, frozen=True, kw_only=True):
    """Another way to run the same training, which must come to the same result.

    What is None is taken over from the case. ``held_out`` names parameters that require
    grad but are not given to the optimizer.
    """

    name: Name
    plan: Plan | None = None
    checkpoints: tuple[Checkpoint, ...] | None = None
    frozen: tuple[Name, ...] | None = None
    held_out: tuple[Name, ...] = ()
