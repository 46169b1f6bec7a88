"""A fault of whole parameters is found, reduced to next to nothing, and shown by a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Linear,
    Op,
    Sequential,
    StateDict,
    Step,
)
from fsdpfuzz.case.operations import FullParams
from tests.injected.by_hand import assert_scripted, judged
from tests.injected.hunting import assert_shown_by_its_script, case_of, found_by, hunt, linears


def test_what_is_written_is_lost(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:local_shard_not_written"
    key = "param_parity/mismatch/fsdp1"
    found = found_by(hunt(injection, tmp_path, number=120, apis=("fsdp1",), until=(key,)), key)
    case = case_of(found)
    assert linears(case) <= 1
    assert found.finding.operation == "full_params"
    (op,) = case.program
    assert isinstance(op, FullParams)
    assert len(op.written) == 1
    assert not any(isinstance(op, StateDict) for op in case.program)
    assert_shown_by_its_script(found)


def reading(read: FullParams, *after: Op) -> CaseSpec:
    units = tuple(Fsdp1Unit(path=path, use_orig_params=True) for path in ("", "0"))
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=3), Linear(out=2))),
        inputs=Dense(width=3),
        plan=Fsdp1Plan(units=units),
        frozen=("0.bias",),
        program=(Forward(), Backward(), read, *after),
    )


@pytest.mark.parametrize(
    ("fault", "key"),
    [
        ("summoned_gradients_empty", "full_params/mismatch/fsdp1"),
        ("summoned_gradients_not_put_back", "param_parity/mismatch/fsdp1"),
    ],
)
def test_gradients_are_read_and_put_back(fault: str, key: str, tmp_path: Path) -> None:
    case = reading(FullParams(grads=True), Step())
    injection = f"benchmarks.faults.injections:{fault}"
    assert judged(case).status == "passed"
    found = judged(case, injection).findings[0]
    assert found.key == key
    if key.startswith("full_params"):
        assert found.name.endswith(".grad")
    assert_scripted(case, found, injection, tmp_path)


@pytest.mark.parametrize("grads", [False, True])
def test_rank_0_alone_reads_them(grads: bool, tmp_path: Path) -> None:
    case = reading(FullParams(rank0_only=True, grads=grads), Step())
    injection = "benchmarks.faults.injections:summoned_on_other_ranks"
    assert judged(case).status == "passed"
    found = judged(case, injection).findings[0]
    assert (found.invariant, found.op) == ("full_params", 2)
    assert_scripted(case, found, injection, tmp_path)


def test_what_each_rank_trains_by_itself_is_rank_0_s_for_all() -> None:
    """A module that FSDP ignores: its gradients nobody reduces, so that ranks part in it."""
    unit = Fsdp1Unit(path="", ignored=("1",))
    case = CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=3), Linear(out=2))),
        inputs=Dense(width=3),
        plan=Fsdp1Plan(units=(unit,)),
        program=(Forward(), Backward(), Step(), FullParams(rank0_only=True)),
    )
    assert judged(case).status == "passed"
