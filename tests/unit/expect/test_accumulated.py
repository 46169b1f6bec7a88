"""The bytes of gradients that wait for their reduction, against numbers worked out by hand."""

from __future__ import annotations

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Op,
    Plan,
    Precision,
    Step,
    ZeroGrad,
    anatomy,
)
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.micro_batches import MicroBatches
from fsdpfuzz.expect import waiting_bytes

WAIT: tuple[Op, ...] = (Forward(sync=False), Backward())
TRAIN: tuple[Op, ...] = (Forward(), Backward(), Step())
WIDE = Precision(param="bfloat16", reduce="float32")


def waiting(
    precision: Precision | None, *program: Op, rank: int = 0, own: bool = False, **changes: object
) -> int | None:
    """After the second operation from the end: weights 5 x 3 and 5 biases."""
    plan: Plan = Fsdp2Plan(units=(Fsdp2Unit(path="", precision=precision),))
    values: dict[str, object] = {
        "world_size": 2,
        "model": Linear(out=5),
        "inputs": Dense(width=3),
        "plan": plan,
        "program": program,
    }
    case = CaseSpec(**(values | changes))  # type: ignore[arg-type]
    return waiting_bytes(anatomy(case), len(case.program) - 1, rank, own=own)


def test_they_are_whole_and_in_the_dtype_of_the_reduction() -> None:
    assert waiting(None, *WAIT) == 20 * 4
    assert waiting(Precision(param="bfloat16"), *WAIT) == 20 * 2
    assert waiting(WIDE, *WAIT) == 20 * 4
    assert waiting(Precision(reduce="float16"), *WAIT, *WAIT) == 20 * 2
    # As torch has it from 2.15 on.
    assert waiting(Precision(param="bfloat16"), *WAIT, own=True) == 20 * 4
    assert waiting(Precision(reduce="float16"), *WAIT, own=True) == 20 * 2


def test_reduced_ones_stay_until_they_are_cleared() -> None:
    # Of 5 rows rank 0 has 3.
    assert waiting(WIDE, *TRAIN, *WAIT) == 20 * 4 + 12 * 4
    assert waiting(WIDE, *TRAIN, *WAIT, rank=1) == 20 * 4 + 8 * 4
    assert waiting(WIDE, *TRAIN, ZeroGrad(), *WAIT) == 20 * 4
    assert waiting(WIDE, *TRAIN, ZeroGrad(set_to_none=False), *WAIT) == 20 * 4 + 12 * 4


def test_nothing_is_said_where_a_gradient_may_lack() -> None:
    assert waiting(WIDE, *WAIT, frozen=("bias",)) is None
    first = Fsdp1Plan(units=(Fsdp1Unit(path=""),))
    assert waiting(WIDE, *WAIT, plan=first) is None


def test_nothing_is_said_of_what_is_reduced_over_the_shards_already() -> None:
    told = MicroBatches(all_reduce_only=True)
    assert waiting(WIDE, *WAIT) is not None
    mesh = Mesh(replicate=2, shard=1)
    assert waiting(WIDE, *WAIT, micro_batches=told, mesh=mesh) is None
