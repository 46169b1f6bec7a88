"""Units with parameters of two dtypes train right, and what goes wrong with that is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import (
    ITERATION,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Lora,
    Precision,
    Sequential,
)
from fsdpfuzz.case.operations import FullParams, Rebuild, StateDict, Transfer
from tests.injected.by_hand import assert_scripted, judged

FIRST = "benchmarks.faults.injections:fsdp2_gathers_in_the_first_dtype"
GRADIENTS = "benchmarks.faults.injections:fsdp2_gradients_in_the_first_dtype"
SUMMED = "benchmarks.faults.injections:fsdp2_summed_not_averaged"
MODEL = Sequential(children=(Lora(out=3, rank=2), Linear(out=2)))


def case(precision: Precision | None = None, **changes: object) -> CaseSpec:
    given = {
        "world_size": 2,
        "model": MODEL,
        "inputs": Dense(width=3, batch=2),
        "plan": Fsdp2Plan(units=(Fsdp2Unit(path="", precision=precision),)),
        "frozen": ("0.base.weight", "0.base.bias"),
        "stored_low": ("0.base",),
        "program": (*ITERATION, *ITERATION),
    }
    return CaseSpec(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float32"])
def test_adapters_on_a_base_in_bfloat16(dtype: str | None) -> None:
    precision = None if dtype is None else Precision(param=dtype)  # type: ignore[arg-type]
    assert judged(case(precision)).status == "passed"


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float32"])
@pytest.mark.parametrize("original", [True, False])
def test_a_flat_parameter_in_bfloat16(dtype: str | None, original: bool) -> None:
    precision = None if dtype is None else Precision(param=dtype)  # type: ignore[arg-type]
    units = (
        Fsdp1Unit(path=p, use_orig_params=original, precision=precision) for p in ("0.base", "")
    )
    program = (*ITERATION, StateDict(form="sharded"), StateDict(form="full"), *ITERATION)
    assert judged(case(plan=Fsdp1Plan(units=tuple(units)), program=program)).status == "passed"


# Nothing is cast then, so that who looks at whole parameters leaves the unit as it is.
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_look_at_a_unit_that_is_stored_as_it_computes(dtype: str) -> None:
    precision = Precision(param=dtype)  # type: ignore[arg-type]
    given = case(
        model=Sequential(children=(Linear(out=2), Linear(out=2))),
        frozen=("0.weight", "0.bias"),
        stored_low=("0",),
        # The root stays whole after a forward.
        plan=Fsdp1Plan(units=tuple(Fsdp1Unit(path=p, precision=precision) for p in ("1", ""))),
        program=(Forward(grad=False), FullParams(), *ITERATION),
    )
    assert judged(given).status == "passed"


@pytest.mark.parametrize(
    "saving",
    [
        StateDict(form="full", rank0_only=True, cpu_offload=True),
        StateDict(form="sharded"),
        Rebuild(plan=Fsdp2Plan(units=(Fsdp2Unit(path="0"), Fsdp2Unit(path="")))),
        Transfer(into="plain"),
        Transfer(into="fsdp2"),
    ],
    ids=lambda op: op.kind(),
)
def test_each_is_saved_in_its_own_dtype(saving: StateDict | Rebuild | Transfer) -> None:
    assert judged(case(program=(*ITERATION, saving, *ITERATION))).status == "passed"


def test_a_wrong_gradient_beside_them_is_seen(tmp_path: Path) -> None:
    """What bfloat16 rounds allows for more, but not for that."""
    found = judged(case(), SUMMED).findings[0]
    assert (found.invariant, found.detail) == ("grad_parity", "times-ranks")
    assert_scripted(case(), found, SUMMED, tmp_path)


def test_what_bfloat16_loses_is_not_taken_for_a_loss_of_float32() -> None:
    """DDP computes in bfloat16, too, where a gradient comes through a layer that is stored so."""
    given = case(
        model=Sequential(children=tuple(Linear(out=out, bias=False) for out in (4, 3, 2))),
        frozen=("1.weight",),
        stored_low=("1",),
    )
    assert judged(given).status == "passed"
    assert "grad_parity" in {found.invariant for found in judged(given, SUMMED).findings}


def test_all_in_the_dtype_of_the_first(tmp_path: Path) -> None:
    (found,) = judged(case(), FIRST).findings
    assert found.key.startswith("no_crash/crash/fsdp2:RuntimeError@torch/distributed/fsdp/")
    assert_scripted(case(), found, FIRST, tmp_path)


def test_gradients_in_the_dtype_of_a_frozen_one(tmp_path: Path) -> None:
    (found,) = judged(case(), GRADIENTS).findings
    assert found.key.startswith("no_crash/crash/fsdp2")
    assert_scripted(case(), found, GRADIENTS, tmp_path)
