"""What goes wrong only after an exception in forward is found and reduced."""

from __future__ import annotations

from pathlib import Path

from fsdpfuzz.case import features
from tests.injected.hunting import (
    LONGER,
    assert_shown_by_its_script,
    case_of,
    found_by,
    hunt,
    linears,
)

WRITTEN_BACK = "no_crash/crash/fsdp1:RuntimeError@torch/distributed/fsdp/_flat_param.py"


def test_what_an_exception_leaves_to_training(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:fsdp1_whole_unit_written_back"
    summary = hunt(injection, tmp_path, number=400, until=(WRITTEN_BACK,), apis=("fsdp1",), seed=5)
    found = found_by(summary, WRITTEN_BACK)
    case = case_of(found)
    assert linears(case) <= 2
    assert features(case)["interrupted"] != "no"
    # It has to say how a module raises, and where that is caught.
    assert_shown_by_its_script(found, lines=LONGER)
