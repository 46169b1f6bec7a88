"""An ``output_dtype`` that has no effect is found, shrunk, and shown by a script."""

from __future__ import annotations

from pathlib import Path

from fsdpfuzz.case import features
from tests.injected.hunting import assert_shown_by_its_script, case_of, found_by, hunt, linears


def test_an_output_dtype_that_has_no_effect(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:fsdp2_output_dtype_ignored"
    key = "no_crash/crash/fsdp2"
    summary = hunt(injection, tmp_path, property_name="fine_tune", number=240, until=(key,))
    found = found_by(summary, key)
    case = case_of(found)
    assert linears(case) <= 2
    assert features(case)["precision_output"] == "on"
    assert_shown_by_its_script(found)
