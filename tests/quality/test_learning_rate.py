"""A rate that is not the optimizer's own is found and reduced to a program that changes it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    Forward,
    Optimizer,
    Rebuild,
    Step,
    ZeroGrad,
    chain,
    features,
)
from fsdpfuzz.case.operations.learning_rate import LearningRate
from fsdpfuzz.case.operations.optim_state import OptimState
from fsdpfuzz.case.operations.transfer import Transfer
from tests.injected.by_hand import judged
from tests.injected.hunting import (
    LONGER,
    assert_shown_by_its_script,
    case_of,
    found_by,
    hunt,
    linears,
)

FIRST_RATE = "benchmarks.faults.injections:dcp_first_rate"


def test_a_rate_that_the_optimizer_no_longer_has(tmp_path: Path) -> None:
    summary = hunt(
        FIRST_RATE, tmp_path, property_name="state_dict", number=200, until=("optim_state",)
    )
    found = found_by(summary, "optim_state")
    case = case_of(found)
    assert linears(case) <= 1
    assert features(case)["learning_rate"] != "fixed"
    # It has to say how a training is saved and taken up again.
    assert_shown_by_its_script(found, lines=2 * LONGER + 15)


@pytest.mark.parametrize("api", ["fsdp1", "fsdp2"])
@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("how", ["optim_state", "rebuild", "transfer"])
def test_a_rate_goes_with_what_is_saved(api: str, name: str, how: str) -> None:
    iteration = (Forward(), Backward(), Step(), ZeroGrad(set_to_none=True))
    rate = LearningRate(factor=0.1)
    case = chain(api, (3, 5, 2), (0,), 2, iteration)
    saved = {
        "optim_state": OptimState(fresh=True),
        "rebuild": Rebuild(plan=case.plan),
        "transfer": Transfer(state=True),
    }[how]
    case = msgspec.structs.replace(
        case,
        optimizer=Optimizer(name=name, lr=0.1),  # type: ignore[arg-type]
        program=(*iteration, rate, saved, *iteration, rate, *iteration),
    )
    assert judged(case).status == "passed"
    assert {found.invariant for found in judged(case, FIRST_RATE).findings} >= {"optim_state"}
