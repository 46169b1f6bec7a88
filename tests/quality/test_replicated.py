"""Faults of units that `replicate` makes are found, reduced to one of them, and scripted."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Sequential,
    StateDict,
    Step,
    ZeroGrad,
    check,
    features,
)
from tests.fitting import skip_unless_it_fits
from tests.injected.by_hand import judged
from tests.injected.hunting import assert_shown_by_its_script, case_of, found_by, hunt, linears

FAULTS = "benchmarks.faults.injections:"
PROGRAM = (
    Forward(sync=False),
    Backward(),
    Forward(),
    Backward(),
    Step(),
    ZeroGrad(),
    StateDict(),
    Forward(),
    Backward(),
    Step(),
)


@pytest.mark.parametrize(
    ("fault", "key"),
    [
        ("fsdp2_replicated_not_reduced", "grad_parity"),
        ("fsdp2_replicated_reduced_twice", "collectives/mismatch/fsdp2"),
    ],
)
def test_a_replicated_unit_with_a_fault(fault: str, key: str, tmp_path: Path) -> None:
    skip_unless_it_fits(fault)
    found = found_by(hunt(FAULTS + fault, tmp_path, number=400, until=(key,), seed=2), key)
    case = case_of(found)
    assert features(case)["replicated"] == "on"
    assert linears(case) == 1
    assert_shown_by_its_script(found)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    "replicated", [("0",), ("1", "1.0"), ("0", "1", "1.0"), ("",), ("", "0"), ("", "0", "1", "1.0")]
)
def test_all_ways_in_which_they_go_together(replicated: tuple[str, ...], ranks: int) -> None:
    fault = "fsdp2_replicated_summed"
    skip_unless_it_fits(fault)
    inner = Sequential(children=(Linear(out=5),))
    units = (Fsdp2Unit(path=p, replicated=p in replicated) for p in ("", "0", "1", "1.0"))
    case = CaseSpec(
        world_size=ranks,
        model=Sequential(children=(Linear(out=4), inner, Linear(out=2))),
        inputs=Dense(width=3, batch=2),
        plan=Fsdp2Plan(units=tuple(units)),
        program=PROGRAM,
    )
    check(case)
    assert judged(case).status == "passed"
    wrong = {finding.invariant for finding in judged(case, FAULTS + fault).findings}
    assert "grad_parity" in wrong
