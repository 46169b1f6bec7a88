"""What a forward puts out over parameters that were not gathered is a finding, and no error."""

from __future__ import annotations

import msgspec

from fsdpfuzz.case import Backward, Dense, Forward, Linear, chain
from tests.injected.by_hand import judged

FAULT = "tests.injected.units:units_are_never_gathered"


def test_an_output_that_is_a_dtensor() -> None:
    # Of one element: DTensor takes such a plain tensor for one that is replicated.
    case = msgspec.structs.replace(
        chain("fsdp2", (1, 1), (), 2, (Forward(), Backward())),
        model=Linear(out=1, bias=False),
        inputs=Dense(width=1, batch=1),
    )
    assert judged(case).status == "passed"
    found = judged(case, FAULT).findings
    assert "collectives" in {finding.invariant for finding in found}


def test_parameters_that_are_cut() -> None:
    case = chain("fsdp2", (2, 2), (), 2, (Forward(), Backward()))
    assert {finding.invariant for finding in judged(case, FAULT).findings} == {"no_crash"}
