"""A fault that shows only where the user replaces a parameter's data is found and reduced to it.

And what the user may do so shows nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import (
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Linear,
    Op,
    Sequential,
    features,
)
from fsdpfuzz.case.operations.rescale import Rescale
from tests.injected.by_hand import ONCE, judged
from tests.injected.hunting import (
    LONGER,
    assert_shown_by_its_script,
    case_of,
    found_by,
    hunt,
    linears,
)

KEY = "output_parity/mismatch/fsdp1"


def test_data_that_is_not_written_back(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:replaced_parameter_ignored"
    summary = hunt(injection, tmp_path, apis=("fsdp1",), number=400, until=(KEY,), seed=1)
    found = found_by(summary, KEY)
    case = case_of(found)
    assert linears(case) <= 2
    assert features(case)["rescaled"] == "new data"
    assert features(case)["use_orig_params"] == "on"
    assert_shown_by_its_script(found, lines=LONGER)


REPLACED = Rescale(parameters=("0.weight", "1.bias"), new_data=True)


@pytest.mark.parametrize(
    "program",
    [(*ONCE, REPLACED), (*ONCE, REPLACED, REPLACED), (*ONCE, REPLACED, Forward())],
    ids=["in the end", "twice", "written back"],
)
def test_data_that_nobody_has_written_back_yet_lies_beside_the_shards(
    program: tuple[Op, ...],
) -> None:
    plan = Fsdp1Plan(
        units=(
            Fsdp1Unit(path="", use_orig_params=True),
            Fsdp1Unit(path="1", use_orig_params=True),
        )
    )
    case = CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=4), Linear(out=3))),
        inputs=Dense(width=3),
        plan=plan,
        program=program,
    )
    assert judged(case).status == "passed"
