"""A fault that shows only where the user replaces a parameter's data is found and reduced to it."""

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
