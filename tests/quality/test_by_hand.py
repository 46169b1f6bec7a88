"""A unit that is not sharded when the user says so is found, reduced to that, and scripted."""

from __future__ import annotations

from pathlib import Path

from fsdpfuzz.case import features
from tests.injected.hunting import assert_shown_by_its_script, case_of, found_by, hunt, linears

KEY = "collectives/mismatch/fsdp2:all-gather-less"


def test_a_reshard_that_does_nothing(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:fsdp2_reshard_by_hand_ignored"
    # Where memory is looked at; by its optimizer's state it takes a longer script to be shown.
    summary = hunt(injection, tmp_path, property_name="memory", number=150, until=(KEY,))
    found = found_by(summary, KEY)
    case = case_of(found)
    assert linears(case) <= 1
    found_as = features(case)
    # Full parameters are read between unshard() and reshard(), too.
    assert found_as["resharded"] == "before backward" or found_as["full_params"] != "no"
    assert_shown_by_its_script(found)
