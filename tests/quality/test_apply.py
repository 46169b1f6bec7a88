"""Faults that show only where a function is applied to modules are found and reduced to that."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import (
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
    Sequential,
    features,
)
from fsdpfuzz.case.operations import Apply
from tests.injected.by_hand import ONCE, assert_scripted, judged
from tests.injected.hunting import (
    LONGER,
    assert_shown_by_its_script,
    case_of,
    found_by,
    hunt,
    linears,
)

FAULTS = "benchmarks.faults.injections"
LOST, SHARDS, ROOT = (
    f"{FAULTS}:fsdp1_applied_{name}" for name in ("lost", "to_shards", "makes_a_root")
)
SMOOTH = Apply(smooth=True)
BELOW = Apply(module="1", smooth=True)


def test_what_is_lost_of_an_applied_function(tmp_path: Path) -> None:
    key = "param_parity/mismatch/fsdp1"
    found = found_by(hunt(LOST, tmp_path, number=300, apis=("fsdp1",), until=(key,)), key)
    case = case_of(found)
    assert linears(case) <= 1
    assert found.finding.operation == "apply"
    assert features(case)["applied"] == "scaled"
    assert_shown_by_its_script(found, lines=LONGER)


def case_with(plan: Plan, *program: Op) -> CaseSpec:
    layers = Sequential(children=(Linear(out=4), Linear(out=3)))
    return CaseSpec(world_size=2, model=layers, inputs=Dense(width=3), plan=plan, program=program)


def first(*, original: bool = True) -> Plan:
    units = (Fsdp1Unit(path=path, use_orig_params=original) for path in ("", "1"))
    return Fsdp1Plan(units=tuple(units))


SECOND = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="1")))


@pytest.mark.parametrize(
    ("injection", "key", "program"),
    [
        (SHARDS, "param_parity/mismatch/fsdp1", (*ONCE, BELOW)),
        (SHARDS, "collectives/mismatch/fsdp1:all-gather-less", (*ONCE, Apply())),
        (ROOT, "no_crash/crash/fsdp1:AssertionError", (BELOW, *ONCE)),
    ],
    ids=["values", "gathers", "root"],
)
def test_what_else_goes_wrong(
    injection: str, key: str, program: tuple[Op, ...], tmp_path: Path
) -> None:
    case = case_with(first(), *program)
    found = next(f for f in judged(case, injection).findings if f.key.startswith(key))
    assert_scripted(case, found, injection, tmp_path)


@pytest.mark.parametrize(
    ("plan", "program"),
    [
        (first(), (BELOW, SMOOTH, *ONCE, BELOW, *ONCE)),
        (first(original=False), (*ONCE, Forward(grad=False), SMOOTH, Forward(grad=False), *ONCE)),
        (SECOND, (BELOW, *ONCE, SMOOTH, *ONCE)),
    ],
    ids=["before the first forward", "while the root is whole", "fsdp2"],
)
def test_what_fsdp_does_rightly(plan: Plan, program: tuple[Op, ...]) -> None:
    assert judged(case_with(plan, *program)).status == "passed"
