"""A unit of which one output alone is looked after is found, reduced to that, and scripted."""

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

KEY = "no_crash/crash/fsdp2"


def test_a_unit_that_backward_reaches_by_its_second_output(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:fsdp2_first_output_hooked"
    found = found_by(hunt(injection, tmp_path, number=300, until=(KEY,)), KEY)
    case = case_of(found)
    assert linears(case) <= 2
    # Keys and values are two outputs as well, whose layers take more lines to write down.
    shown = features(case)
    reused = shown["kv_reuse"] == "on"
    assert "outputs" in shown["kinds"] or reused
    assert_shown_by_its_script(found, lines=LONGER + 25 if reused else LONGER)
