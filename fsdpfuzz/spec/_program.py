"""The training program: a short list of operations, run by FSDP and by the reference alike."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from fsdpfuzz.spec._base import Batch, Name, Part, Rank, Width

Rate = Annotated[float, Meta(ge=0.0, le=10.0)]


class Dense(Part, tag="dense", tag_field="kind", frozen=True, kw_only=True):
    """Normal random inputs of shape ``(batch, width)``, or ``(batch, length, width)``."""

    width: Width
    batch: Batch = 2
    length: Annotated[int, Meta(ge=1, le=4096)] | None = None
    requires_grad: bool = False


class Tokens(Part, tag="tokens", tag_field="kind", frozen=True, kw_only=True):
    """Random integers of shape ``(batch, length)`` for a model that starts with an embedding."""

    batch: Batch = 2
    length: Annotated[int, Meta(ge=1, le=4096)] = 3


Inputs = Dense | Tokens


class Optimizer(Part, frozen=True, kw_only=True):
    """The optimizer of all parameters that the case does not hold out.

    SGD with momentum is the default because Adam hides a wrong gradient scale.
    """

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Rate = 0.05
    momentum: Annotated[float, Meta(ge=0.0, le=0.99)] = 0.9
    """For SGD only."""
    eps: Annotated[float, Meta(gt=0.0, le=1.0)] = 1e-4
    """For Adam and AdamW; large, so that rounding in a gradient near zero is not blown up."""
    foreach: bool | None = None


class Forward(Part, tag="forward", tag_field="op", frozen=True, kw_only=True):
    """One forward on fresh inputs; the loss stays pending until `backward`.

    ``sync=False`` is gradient accumulation without communication (``no_sync``).
    """

    sync: bool = True
    grad: bool = True
    drop: bool = False
    """Throws the loss away: gradients are recorded, but no backward follows."""
    target: Name = ""
    """FQN of the module that is called instead of the root; its width is the inputs'."""


class Backward(Part, tag="backward", tag_field="op", frozen=True, kw_only=True):
    """Backward of all pending losses."""


class Step(Part, tag="step", tag_field="op", frozen=True, kw_only=True):
    """``optimizer.step()``."""


class ZeroGrad(Part, tag="zero_grad", tag_field="op", frozen=True, kw_only=True):
    """``optimizer.zero_grad(set_to_none=...)``."""

    set_to_none: bool = True


class Mode(Part, tag="mode", tag_field="op", frozen=True, kw_only=True):
    """``model.train(...)``."""

    train: bool


class RequiresGrad(Part, tag="requires_grad", tag_field="op", frozen=True, kw_only=True):
    """Freezes or unfreezes the named parameters between iterations."""

    parameters: tuple[Name, ...]
    value: bool


class Flip(Part, tag="flip", tag_field="op", frozen=True, kw_only=True):
    """Moves the `switch` at ``path`` to its next child, on ``ranks`` only.

    The child that was active is frozen and the next one unfrozen.
    """

    path: Name
    ranks: tuple[Rank, ...]


class StateDict(Part, tag="state_dict", tag_field="op", frozen=True, kw_only=True):
    """Takes the state dict, compares it with the reference, and loads it into a zeroed model.

    ``local`` is a form of fsdp1 alone. ``rank0_only`` goes with ``full``; fsdp2 has it only
    together with the offload of a full state dict, so there either one asks for both.
    """

    form: Literal["full", "sharded", "local"] = "full"
    rank0_only: bool = False
    cpu_offload: bool = False


Op = Forward | Backward | Step | ZeroGrad | Mode | RequiresGrad | Flip | StateDict
