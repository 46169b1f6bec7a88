"""A fault that shows only where the user drops gradients is found, reduced to it and scripted."""

from __future__ import annotations

from pathlib import Path

from fsdpfuzz.case import ZeroGrad, features
from fsdpfuzz.case.operations import ClearGrad
from tests.injected.hunting import (
    LONGER,
    assert_shown_by_its_script,
    case_of,
    found_by,
    hunt,
    linears,
)

KEY = "grad_parity/mismatch/fsdp1"


def test_a_gradient_that_comes_back(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:cleared_gradient_written_back"
    summary = hunt(injection, tmp_path, apis=("fsdp1",), number=400, until=(KEY,))
    found = found_by(summary, KEY)
    case = case_of(found)
    assert linears(case) <= 2
    assert any(isinstance(op, ClearGrad | ZeroGrad) for op in case.program)
    assert features(case)["use_orig_params"] == "on"
    # Up to three forwards, one of them without gradient.
    assert_shown_by_its_script(found, lines=LONGER + 5)
