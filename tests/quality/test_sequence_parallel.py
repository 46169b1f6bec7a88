"""Blocks that hand on rows in parts, and gradients of norms that only their sum over ranks is."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from fsdpfuzz.case import (
    Activation,
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Norm,
    Precision,
    Residual,
    Sequential,
    StateDict,
    Step,
)
from fsdpfuzz.case.operations import Clip, ZeroGrad
from fsdpfuzz.case.parallel import Parallel
from fsdpfuzz.case.tensor_parallel import TensorParallel
from fsdpfuzz.invariants import judge
from fsdpfuzz.pool import Pool
from tests.fitting import skip_unless_it_fits

TRAIN = (Forward(), Backward(), Clip(max_norm=0.5), Step(), ZeroGrad())
BODY = Sequential(
    children=(Norm(variant="rms"), Linear(out=8), Activation(fn="gelu"), Linear(out=4))
)
BLOCK = Sequential(children=(Linear(out=4), Residual(body=BODY), Norm(), Linear(out=4)))
PARTS = (
    Parallel(module="0", style="rowwise"),
    Parallel(module="1.body.0", style="sequence"),
    Parallel(module="1.body.1", into="1.body.3"),
    Parallel(module="2", style="sequence"),
    Parallel(module="3"),
)
LEFT_OUT = "fsdp2_sequence_parallel_sums_left_out"


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[int, Pool]]:
    """On gloo, with one tensor-parallel group of two ranks, and with two."""
    with Pool(2, "gloo") as two, Pool(4, "gloo") as four:
        yield {2: two, 4: four}


@pytest.mark.parametrize(
    "told",
    [
        TensorParallel(modules=PARTS),
        TensorParallel(modules=PARTS, hands_on=True),
        TensorParallel(modules=PARTS, hands_on=True, sequence_dim=1, use_local_output=False),
    ],
    ids=["alone", "handed on", "as DTensors"],
)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("low", [False, True])
def test_they_train_are_saved_and_recomputed(
    pools: dict[int, Pool], told: TensorParallel, ranks: int, low: bool
) -> None:
    precision = Precision(param="bfloat16", reduce="float32") if low else None
    given = CaseSpec(
        world_size=ranks,
        model=BLOCK,
        inputs=Dense(width=4, batch=2, length=2),
        plan=Fsdp2Plan(
            units=tuple(Fsdp2Unit(path=path, precision=precision) for path in ("1", "2", ""))
        ),
        frozen=("2.weight",),
        checkpoints=(Checkpoint(path="1"),),
        program=(*TRAIN * 2, Forward(sync=False), Backward(), *TRAIN, StateDict(form="full")),
        tensor_parallel=told,
    )
    verdict = judge(given, pools[ranks].run(given))
    assert (verdict.status, [finding.key for finding in verdict.findings]) == ("passed", [])


def test_sums_that_are_left_out() -> None:
    """Of norms alone ranks of a tensor-parallel group have gradients that differ."""
    skip_unless_it_fits(LEFT_OUT)
    given = CaseSpec(
        world_size=2,
        model=Sequential(children=(Norm(), Linear(out=4))),
        inputs=Dense(width=4, batch=2),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        program=(Forward(), Backward()),
        tensor_parallel=TensorParallel(
            modules=(Parallel(module="0", style="sequence"), Parallel(module="1"))
        ),
    )
    with Pool(2, "gloo", injection=f"benchmarks.faults.injections:{LEFT_OUT}") as pool:
        found = judge(given, pool.run(given)).findings
        linears = TensorParallel(modules=(Parallel(module="1"),))
        sound = msgspec.structs.replace(given, tensor_parallel=linears)
        assert judge(sound, pool.run(sound)).status == "passed"
    assert "grad_parity" in {finding.invariant for finding in found}
