"""Document 004: ``FSDPMemTracker``'s peak against the CUDA allocator's, within a tenth.

Each seed is measured at the document's own size, which needs a GPU. Elsewhere its small form
runs: the same structure and options, without the comparison with CUDA's peak.
"""

from __future__ import annotations

from typing import Literal

from fsdpfuzz.case import (
    Activation,
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Dropout,
    Embedding,
    EncoderLayer,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Node,
    Norm,
    Op,
    Optimizer,
    Positions,
    Precision,
    Sequential,
    Step,
    Tie,
    Tokens,
    ZeroGrad,
)
from fsdpfuzz.seeds._base import Seed

NEEDS = ("CUDA memory statistics",)
ITERATIONS = 2
SEED = 42
WORLD_SIZE = 2
BLOCKS = 4


def _program(target: str = "") -> tuple[Op, ...]:
    return (Forward(target=target), Backward(), Step(), ZeroGrad()) * ITERATIONS


def _mlps(count: int, width: int) -> Node:
    """Layers of ``width`` to four times ``width`` and back, each followed by a relu."""
    relu = Activation(fn="relu")
    mlp = Sequential(children=(Linear(out=4 * width), relu, Linear(out=width), relu))
    return Sequential(children=(mlp,) * count)


def _multi_group(*, reshard: bool, offload: bool, width: int, batch: int) -> CaseSpec:
    """Four MLPs, each a unit, and the root; parameters in float16, reduction in float32."""
    units = tuple(
        Fsdp2Unit(
            path=path,
            reshard_after_forward=reshard,
            cpu_offload=offload,
            precision=Precision(param="float16", reduce="float32"),
        )
        for path in ("0", "1", "2", "3", "")
    )
    return CaseSpec(
        world_size=WORLD_SIZE,
        seed=SEED,
        model=_mlps(4, width),
        inputs=Dense(width=width, batch=batch),
        plan=Fsdp2Plan(units=units),
        optimizer=Optimizer(name="adam", lr=1e-2),
        program=_program(),
        loss="sum",
        probes=("mem_tracker",),
    )


def _non_root(*, width: int, batch: int) -> CaseSpec:
    """Forward and backward of the first of three MLPs; the root is never called."""
    return CaseSpec(
        world_size=WORLD_SIZE,
        seed=SEED,
        model=_mlps(3, width),
        inputs=Dense(width=width, batch=batch),
        plan=Fsdp2Plan(units=tuple(Fsdp2Unit(path=path) for path in ("0", "1", "2", ""))),
        optimizer=Optimizer(name="adam", lr=1e-2, foreach=True),
        program=_program("0"),
        loss="sum",
        probes=("mem_tracker",),
    )


def _checkpointed(
    *,
    reshard: bool,
    kind: Literal["composable", "wrapper"],
    rows: int,
    batch: int,
    length: int,
) -> CaseSpec:
    """A decoder of four blocks, each recomputed and a unit; embedding and head share a weight.

    A dimension of 16 is what the document's defaults amount to.
    """
    block = EncoderLayer(heads=4, hidden=64, dropout=0.1, norm_first=True, causal=True)
    first = 3  # after the two embeddings and the dropout
    paths = tuple(str(first + i) for i in range(BLOCKS))
    head = str(first + BLOCKS + 1)
    return CaseSpec(
        world_size=WORLD_SIZE,
        seed=SEED,
        model=Sequential(
            children=(
                Embedding(rows=rows, out=16),
                Positions(rows=length),
                Dropout(p=0.1),
                *(block,) * BLOCKS,
                Norm(),
                Linear(out=rows, bias=False),
            )
        ),
        inputs=Tokens(batch=batch, length=length),
        ties=(Tie(source="0.weight", target=f"{head}.weight"),),
        plan=Fsdp2Plan(
            units=tuple(
                Fsdp2Unit(path=path, reshard_after_forward=reshard) for path in (*paths, "")
            )
        ),
        checkpoints=tuple(Checkpoint(path=path, kind=kind) for path in paths),
        optimizer=Optimizer(name="adam", lr=1e-2, foreach=False),
        program=_program(),
        loss="sum",
        probes=("mem_tracker",),
    )


def _multi_group_seeds() -> tuple[Seed, ...]:
    return tuple(
        Seed(
            document="004",
            test="test_tracker_multi_group_eager",
            params=f"reshard_after_forward={reshard},"
            f"offload_policy={'CPUOffloadPolicy' if offload else 'OffloadPolicy'},"
            "mp_policy=float16/float32",
            case=_multi_group(reshard=reshard, offload=offload, width=2048, batch=8192),
            needs=NEEDS,
            small=_multi_group(reshard=reshard, offload=offload, width=16, batch=8),
        )
        for reshard in (True, False)
        for offload in (True, False)
    )


def _checkpointed_seeds() -> tuple[Seed, ...]:
    kinds: tuple[Literal["composable", "wrapper"], ...] = ("composable", "wrapper")
    return tuple(
        Seed(
            document="004",
            test="test_tracker_with_activation_checkpointing",
            params=f"reshard_after_forward={reshard},checkpoint_impl={kind}",
            case=_checkpointed(reshard=reshard, kind=kind, rows=8192, batch=16, length=512),
            needs=NEEDS,
            small=_checkpointed(reshard=reshard, kind=kind, rows=64, batch=8, length=8),
        )
        for reshard in (True, False)
        for kind in kinds
    )


MEMORY: tuple[Seed, ...] = (
    *_multi_group_seeds(),
    Seed(
        document="004",
        test="test_tracker_non_root_forward_backward",
        params="",
        case=_non_root(width=2048, batch=8),
        needs=NEEDS,
        small=_non_root(width=16, batch=8),
    ),
    *_checkpointed_seeds(),
)
"""The nine parametrisations, in the order of the document."""
