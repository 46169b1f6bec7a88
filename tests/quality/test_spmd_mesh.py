"""Parameters on a mesh that fully_shard is told by name, and what goes wrong with them alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
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
    Variant,
    features,
)
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.meta_init import WAYS, By, MetaInit
from fsdpfuzz.case.named_axes import SpmdMesh
from fsdpfuzz.case.operations import Clip, OptimState, Rebuild, Transfer, ZeroGrad
from fsdpfuzz.case.parallel import Parallel
from fsdpfuzz.case.tensor_parallel import TensorParallel
from fsdpfuzz.invariants import judge
from fsdpfuzz.loop import resolve_machine
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

TRAIN = (Forward(), Backward(), Clip(max_norm=1.0), Step(), ZeroGrad())
INJECTIONS = "benchmarks.faults.injections"
CUT = TensorParallel(modules=(Parallel(module="0"), Parallel(module="2", style="rowwise")))


def named(ranks: int, told: SpmdMesh | None = None, **changes: Any) -> CaseSpec:
    given: CaseSpec = msgspec.structs.replace(
        CaseSpec(
            world_size=ranks,
            model=Sequential(children=(Linear(out=8), Norm(), Linear(out=4))),
            inputs=Dense(width=4, batch=2),
            plan=Fsdp2Plan(units=(Fsdp2Unit(path="0"), Fsdp2Unit(path=""))),
            program=(*TRAIN * 2, StateDict(form="full")),
            spmd_mesh=told or SpmdMesh(),
        ),
        **changes,
    )
    return given


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[int, Pool]]:
    """On gloo, with two ranks and with four, where fully_shard is told of a mesh by its names."""
    if "fully_shard(dp_mesh_dims)" not in resolve_machine("gloo", (2,)).offers:
        pytest.skip("fully_shard of this torch takes no dp_mesh_dims")
    with Pool(2, "gloo") as two, Pool(4, "gloo") as four:
        yield {2: two, 4: four}


def shown(pools: dict[int, Pool], case: CaseSpec) -> tuple[str, list[str]]:
    verdict = judge(case, pools[case.world_size].run(case))
    return verdict.status, [finding.key for finding in verdict.findings]


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        (2, {}),
        (2, {"spmd_mesh": SpmdMesh(inner=1)}),
        (4, {"spmd_mesh": SpmdMesh(inner=2)}),
        (4, {"mesh": Mesh(replicate=2, shard=2)}),
        (4, {"mesh": Mesh(replicate=2, shard=2), "spmd_mesh": SpmdMesh(inner=2)}),
        (4, {"tensor_parallel": CUT}),
        (4, {"tensor_parallel": CUT, "spmd_mesh": SpmdMesh(inner=2)}),
        (4, {"tensor_parallel": CUT, "mesh": Mesh(replicate=2, shard=1)}),
    ],
    ids=[
        "one axis",
        "a second of one",
        "two axes",
        "replicas",
        "all three",
        "parallelised",
        "parallelised, two axes",
        "parallelised replicas",
    ],
)
@pytest.mark.parametrize("low", [False, True])
def test_they_train_and_are_saved(
    pools: dict[int, Pool], ranks: int, changes: dict[str, Any], low: bool
) -> None:
    precision = Precision(param="bfloat16", reduce="float32") if low else None
    units = tuple(Fsdp2Unit(path=path, precision=precision) for path in ("0", ""))
    program: tuple[Op, ...] = (Forward(sync=False), Backward(), *TRAIN * 2, StateDict(form="full"))
    recomputed = (Checkpoint(path="2"),)
    case = named(ranks, plan=Fsdp2Plan(units=units), checkpoints=recomputed, program=program)
    assert shown(pools, msgspec.structs.replace(case, **changes)) == ("passed", [])


@pytest.mark.parametrize(
    "op",
    [
        OptimState(),
        OptimState(form="sharded"),
        Transfer(state=True),
        Transfer(into="fsdp1", ranks=1),
        Rebuild(plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),))),
    ],
    ids=["full", "sharded", "plain", "fsdp1", "another plan"],
)
def test_its_state_goes_elsewhere(pools: dict[int, Pool], op: Op) -> None:
    given = named(4, SpmdMesh(inner=2), program=(*TRAIN, op, *TRAIN))
    assert shown(pools, given) == ("passed", [])


def test_trainings_of_one_process_do_not_meet_each_other_s_meshes() -> None:
    """FSDP asks for the very mesh of a parameter, and DTensor remembers an equal one.

    In ranks of their own: what ran before is what it is about.
    """
    skip_unless_it_fits("fsdp2_named_axes_swapped")
    over_two = named(2, mesh=Mesh(replicate=1, shard=2))
    variant = Variant(name="first", checkpoints=(Checkpoint(path="2"),))
    with Pool(2, "gloo") as pool:
        for case in (
            msgspec.structs.replace(over_two, spmd_mesh=None),
            msgspec.structs.replace(over_two, twins=(variant,)),
            named(2, twins=(variant,)),
            over_two,
            named(2),
        ):
            verdict = judge(case, pool.run(case))
            assert (verdict.status, [f.key for f in verdict.findings]) == ("passed", [])


@pytest.mark.parametrize("by", WAYS["fsdp2"])
def test_it_begins_on_the_meta_device(pools: dict[int, Pool], by: By) -> None:
    expected = "rejected" if by == "never" else "passed"
    assert shown(pools, named(2, meta_init=MetaInit(by=by))) == (expected, [])


def test_it_refuses_to_reshard_over_some_ranks(pools: dict[int, Pool]) -> None:
    units = (Fsdp2Unit(path="0", reshard_after_forward=2), Fsdp2Unit(path=""))
    assert shown(pools, named(4, plan=Fsdp2Plan(units=units))) == ("rejected", [])


@pytest.mark.parametrize(
    ("fault", "ranks", "changes"),
    [
        ("swapped", 4, {"mesh": Mesh(replicate=2, shard=2)}),
        ("flattened_in_part", 4, {"spmd_mesh": SpmdMesh(inner=2)}),
    ],
)
def test_axes_that_are_taken_for_others(fault: str, ranks: int, changes: dict[str, Any]) -> None:
    skip_unless_it_fits(f"fsdp2_named_axes_{fault}")
    given = named(ranks, **changes)
    plain = msgspec.structs.replace(given, spmd_mesh=None)
    with Pool(ranks, "gloo", injection=f"{INJECTIONS}:fsdp2_named_axes_{fault}") as pool:
        found = judge(given, pool.run(given)).findings
        assert judge(plain, pool.run(plain)).status == "passed"
    assert "grad_parity" in {finding.invariant for finding in found}


def test_gradients_that_are_summed_twice(tmp_path: Path) -> None:
    """Nothing is said; every gradient is too large by the number of ranks."""
    skip_unless_it_fits("fsdp2_named_axes_reduced_twice")
    injection = f"{INJECTIONS}:fsdp2_named_axes_reduced_twice"
    found = found_by(hunt(injection, tmp_path, number=200, until=("",)), "")
    assert found.finding.invariant in ("grad_parity", "param_parity")
    assert features(case_of(found))["spmd_mesh"] == "one axis"
    assert linears(case_of(found)) <= 1
    assert_shown_by_its_script(found, lines=LONGER)
