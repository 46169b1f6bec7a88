"""Parameters that say what is gathered of them train right, and what goes wrong with that shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import (
    ITERATION,
    CaseSpec,
    Dense,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Optimizer,
    Precision,
    Sequential,
)
from fsdpfuzz.case.extensions import Extension
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.meta_init import MetaInit
from fsdpfuzz.case.operations import Clip, FullParams, OptimState, StateDict
from fsdpfuzz.case.units.shard_placement import Placement
from tests.injected.by_hand import assert_scripted, judged

FAULTS = "benchmarks.faults.injections:fsdp2_extension_"
BOTH = (Extension(parameter="0.weight"), Extension(parameter="1.weight", sends="wider"))
CLIPPED = (*ITERATION[:2], Clip(max_norm=0.1), *ITERATION[2:])


def case(*units: Fsdp2Unit, **changes: object) -> CaseSpec:
    given: dict[str, object] = {
        "world_size": 2,
        "model": Sequential(children=(Linear(out=5), Linear(out=4))),
        "inputs": Dense(width=3),
        "plan": Fsdp2Plan(units=units or (Fsdp2Unit(path="0"), Fsdp2Unit(path=""))),
        "extensions": BOTH,
        "program": (*ITERATION, *ITERATION),
    }
    return CaseSpec(**{**given, **changes})  # type: ignore[arg-type]


LOW = Precision(param="bfloat16", reduce="float32")
COLUMNS = (Placement(parameter="1.weight", dim=-1),)
SOUND = {
    "uneven over three ranks": case(world_size=3),
    "whole after forward": case(Fsdp2Unit(path="", reshard_after_forward=False)),
    "in lower precision": case(Fsdp2Unit(path="", precision=LOW)),
    "offloaded": case(Fsdp2Unit(path="", cpu_offload=True)),
    "clipped": case(program=(*CLIPPED, *CLIPPED)),
    "over replicas": case(world_size=4, mesh=Mesh(replicate=2, shard=2)),
    "by columns": case(
        Fsdp2Unit(path="", shard_placement=COLUMNS),
        model=Sequential(children=(Linear(out=4), Linear(out=4))),
    ),
    "adam": case(optimizer=Optimizer(name="adam", lr=0.01)),
    "made on meta": case(meta_init=MetaInit()),
    "saved and read": case(
        program=(*ITERATION, StateDict(form="full"), OptimState(), FullParams(), *ITERATION)
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_they_train_as_plain_ones(name: str) -> None:
    assert judged(SOUND[name]).status == "passed"


@pytest.mark.parametrize("sends", ["split", "wider"])
@pytest.mark.parametrize(
    ("fault", "invariant"),
    [
        ("memory_kept", "shard_bytes"),
        ("joined_once", "output_parity"),
        ("sends_the_first", "output_parity"),
        ("of_the_last", "no_crash"),
        ("in_full_precision", "no_crash"),
    ],
)
def test_faults_of_theirs_are_found(fault: str, invariant: str, sends: str, tmp_path: Path) -> None:
    both = tuple(Extension(parameter=f"{i}.weight", sends=sends) for i in range(2))  # type: ignore[arg-type]
    precision = LOW if fault == "in_full_precision" else None
    given = case(Fsdp2Unit(path="", precision=precision), extensions=both)
    found = judged(given, FAULTS + fault).findings[0]
    assert found.invariant == invariant
    assert_scripted(given, found, FAULTS + fault, tmp_path)


def test_nothing_else_shows_them() -> None:
    plain = case(extensions=())
    for fault in ("memory_kept", "joined_once", "sends_the_first", "of_the_last"):
        assert judged(plain, FAULTS + fault).status == "passed"
