"""Models that are cut over ranks and then sharded, and what goes wrong with them alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

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
    Op,
    Precision,
    Sequential,
    StateDict,
    Step,
    features,
)
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.meta_init import WAYS, By, MetaInit
from fsdpfuzz.case.operations import OptimState, Transfer, ZeroGrad
from fsdpfuzz.case.parallel import Parallel
from fsdpfuzz.case.tensor_parallel import TensorParallel
from fsdpfuzz.invariants import judge
from fsdpfuzz.pool import Pool
from tests.fitting import skip_unless_it_fits
from tests.injected.hunting import (
    LONGER,
    assert_shown_by_its_script,
    case_of,
    found_by,
    hunt,
    linears,
)

TRAIN = (Forward(), Backward(), Step(), ZeroGrad())
INJECTIONS = "benchmarks.faults.injections"


def cut(ranks: int, **changes: Any) -> CaseSpec:
    given: CaseSpec = msgspec.structs.replace(
        CaseSpec(
            world_size=ranks,
            model=Sequential(children=(Linear(out=8), Norm(), Linear(out=4))),
            inputs=Dense(width=4, batch=2),
            plan=Fsdp2Plan(units=(Fsdp2Unit(path="0"), Fsdp2Unit(path=""))),
            program=(*TRAIN * 2, StateDict(form="full")),
            tensor_parallel=TensorParallel(
                modules=(Parallel(module="0"), Parallel(module="2", style="rowwise"))
            ),
        ),
        **changes,
    )
    return given


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[int, Pool]]:
    """On gloo, with one tensor-parallel group of two ranks, and with two."""
    with Pool(2, "gloo") as two, Pool(4, "gloo") as four:
        yield {2: two, 4: four}


@pytest.mark.parametrize(
    "parts",
    [
        (Parallel(module="0", into="2"), Parallel(module="3")),
        (Parallel(module="0"), Parallel(module="2", style="rowwise")),
    ],
    ids=["pair and single", "both styles"],
)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("low", [False, True])
def test_they_train_are_saved_and_recomputed(
    pools: dict[int, Pool], parts: tuple[Parallel, ...], ranks: int, low: bool
) -> None:
    precision = Precision(param="bfloat16", reduce="float32") if low else None
    given = CaseSpec(
        world_size=ranks,
        model=Sequential(
            children=(Linear(out=8), Activation(fn="gelu"), Linear(out=4), Linear(out=4))
        ),
        inputs=Dense(width=4, batch=3),
        plan=Fsdp2Plan(
            units=tuple(Fsdp2Unit(path=path, precision=precision) for path in ("0", "2", ""))
        ),
        checkpoints=(Checkpoint(path="0"),),
        program=(*TRAIN * 2, Forward(sync=False), Backward(), *TRAIN, StateDict(form="full")),
        tensor_parallel=TensorParallel(modules=parts),
    )
    verdict = judge(given, pools[ranks].run(given))
    assert (verdict.status, [finding.key for finding in verdict.findings]) == ("passed", [])


@pytest.mark.parametrize(
    ("ranks", "mesh"),
    [
        (2, Mesh(replicate=1, shard=1)),
        (4, Mesh(replicate=2, shard=1)),
        (4, Mesh(replicate=1, shard=2)),
    ],
)
def test_replicas_of_what_is_cut(pools: dict[int, Pool], ranks: int, mesh: Mesh) -> None:
    given = cut(ranks, mesh=mesh)
    verdict = judge(given, pools[ranks].run(given))
    assert (verdict.status, [finding.key for finding in verdict.findings]) == ("passed", [])


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    "op",
    [
        OptimState(),
        OptimState(form="sharded"),
        OptimState(broadcast=True),
        Transfer(state=True),
        Transfer(into="fsdp2", ranks=1),
    ],
)
def test_what_is_saved_of_it_goes_into_another_optimizer_or_model(
    pools: dict[int, Pool], ranks: int, op: Op
) -> None:
    given = cut(ranks, program=(*TRAIN, op, *TRAIN))
    verdict = judge(given, pools[ranks].run(given))
    assert (verdict.status, [finding.key for finding in verdict.findings]) == ("passed", [])


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("by", WAYS["fsdp2"])
def test_what_is_cut_on_the_meta_device(pools: dict[int, Pool], ranks: int, by: By) -> None:
    given = cut(ranks, meta_init=MetaInit(by=by))
    verdict = judge(given, pools[ranks].run(given))
    expected = "rejected" if by == "never" else "passed"
    assert (verdict.status, [finding.key for finding in verdict.findings]) == (expected, [])


@pytest.mark.parametrize(
    ("fault", "style"), [("rows_in_other_order", "colwise"), ("strided_without_need", "rowwise")]
)
def test_parts_that_are_put_together_wrongly(
    fault: str, style: Literal["colwise", "rowwise"]
) -> None:
    """The state dict has another model, of which the plain one's neighbours show nothing."""
    skip_unless_it_fits(f"fsdp2_tensor_parallel_{fault}")
    given = CaseSpec(
        world_size=4,
        model=Linear(out=4, bias=False),
        inputs=Dense(width=4, batch=2),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        program=(StateDict(form="full"),),
        tensor_parallel=TensorParallel(modules=(Parallel(module="", style=style),)),
    )
    with Pool(4, "gloo", injection=f"{INJECTIONS}:fsdp2_tensor_parallel_{fault}") as pool:
        found = judge(given, pool.run(given)).findings
        plain = msgspec.structs.replace(given, tensor_parallel=None)
        assert judge(plain, pool.run(plain)).status == "passed"
        other = Parallel(module="", style="rowwise" if style == "colwise" else "colwise")
        sound = msgspec.structs.replace(given, tensor_parallel=TensorParallel(modules=(other,)))
        assert judge(sound, pool.run(sound)).status == "passed"
    assert "state_dict_values" in {finding.invariant for finding in found}


def test_swapped_axes(tmp_path: Path) -> None:
    skip_unless_it_fits("fsdp2_tensor_parallel_axes_swapped")
    injection = f"{INJECTIONS}:fsdp2_tensor_parallel_axes_swapped"
    found = found_by(hunt(injection, tmp_path, number=200, until=("",)), "")
    assert features(case_of(found))["tensor_parallel"] == "on"
    assert linears(case_of(found)) <= 1
    assert_shown_by_its_script(found, lines=LONGER)
