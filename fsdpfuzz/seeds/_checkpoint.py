"""Document 000: activation checkpointing in, around and beside FSDP units.

Every form of the same training is a variant of the first; the document asks that outputs,
losses and gradients of all of them be equal in each iteration. Gradients accumulate, since
the document never clears them.
"""

from __future__ import annotations

from itertools import product

from fsdpfuzz.case import (
    Activation,
    Backward,
    CaseSpec,
    Checkpoint,
    CheckpointKind,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Linear,
    Sequential,
    Variant,
)
from fsdpfuzz.seeds._base import Seed

OFFLOAD_NEEDS = ("FSDP1's CPU offload: a GPU to compute on",)
_LAYERS = Sequential(children=(Sequential(children=(Linear(out=3),) * 3),))
_LAYER_PATHS = ("0.0", "0.1", "0.2")
_INPUTS = Dense(width=3, batch=10, requires_grad=True)


def _plan(*paths: str, cpu_offload: bool, use_orig_params: bool) -> Fsdp1Plan:
    return Fsdp1Plan(
        units=tuple(
            Fsdp1Unit(path=path, cpu_offload=cpu_offload, use_orig_params=use_orig_params)
            for path in paths
        )
    )


def _wrapping(*, cpu_offload: bool, offload_activations: bool, use_orig_params: bool) -> CaseSpec:
    """checkpoint(FSDP(layer), ...), FSDP(checkpoint(layer)), ... and no checkpoint.

    The module that holds the layers is no unit.
    """
    kind: CheckpointKind = "offload" if offload_activations else "wrapper"
    return CaseSpec(
        world_size=2,
        model=_LAYERS,
        inputs=_INPUTS,
        plan=_plan(*_LAYER_PATHS, cpu_offload=cpu_offload, use_orig_params=use_orig_params),
        checkpoints=(Checkpoint(path="", kind=kind),),
        optimizer=None,
        program=(Forward(), Backward()) * 2,
        loss="sum",
        twins=(
            Variant(
                name="layers",
                checkpoints=tuple(Checkpoint(path=path, kind=kind) for path in _LAYER_PATHS),
            ),
            Variant(name="plain", checkpoints=()),
        ),
    )


def _end_to_end(*, cpu_offload: bool, offload_activations: bool, use_orig_params: bool) -> CaseSpec:
    """FSDP(m), checkpoint(FSDP(m)), FSDP(checkpoint(m)), and FSDP(m) called by ``checkpoint``."""
    kind: CheckpointKind = "offload" if offload_activations else "wrapper"
    manual: CheckpointKind = "function_offload" if offload_activations else "function"
    return CaseSpec(
        world_size=2,
        model=_LAYERS,
        inputs=_INPUTS,
        plan=_plan("", cpu_offload=cpu_offload, use_orig_params=use_orig_params),
        optimizer=None,
        program=(Forward(), Backward()) * 6,
        loss="sum",
        twins=(
            Variant(name="around", checkpoints=(Checkpoint(path="", kind=kind, side="around"),)),
            Variant(name="inside", checkpoints=(Checkpoint(path="", kind=kind, side="inside"),)),
            Variant(
                name="called",
                checkpoints=(Checkpoint(path="", kind=manual, reentrant=True, side="around"),),
            ),
        ),
    )


def _submodule(*, use_reentrant: bool) -> CaseSpec:
    """Stacks of layers called by ``checkpoint``, inside unsharded units; what is around is bare."""
    linear, relu = Linear(out=100), Activation(fn="relu")
    stack = Sequential(children=(linear,) * 4)
    unit = Sequential(children=(linear, stack, stack, relu, linear))
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(linear, unit, unit, relu, linear)),
        inputs=Dense(width=100, batch=2),
        plan=Fsdp1Plan(units=tuple(Fsdp1Unit(path=p, sharding="NO_SHARD") for p in ("1", "2"))),
        checkpoints=tuple(
            Checkpoint(path=path, kind="function", reentrant=use_reentrant)
            for path in ("1.1", "1.2", "2.1", "2.2")
        ),
        optimizer=None,
        program=(Forward(), Backward()),
        loss="sum",
        twins=(Variant(name="plain", checkpoints=()),),
    )


def _with_options() -> tuple[Seed, ...]:
    forms = (
        ("test_checkpoint_fsdp_wrapping", _wrapping),
        ("test_basic_checkpoint_end_to_end", _end_to_end),
    )
    return tuple(
        Seed(
            document="000",
            test=test,
            params=f"cpu_offload=CPUOffload(offload_params={offload}),"
            f"offload_activations={activations},use_orig_params={orig}",
            case=make(cpu_offload=offload, offload_activations=activations, use_orig_params=orig),
            needs=OFFLOAD_NEEDS if offload else (),
        )
        for test, make in forms
        for offload, activations, orig in product((True, False), (True, False), (False, True))
    )


CHECKPOINT: tuple[Seed, ...] = (
    *_with_options(),
    Seed(
        document="000",
        test="test_checkpoint_submodule",
        params="use_reentrant=False",
        case=_submodule(use_reentrant=False),
    ),
)
"""The seventeen parametrisations, in the order of the document."""
