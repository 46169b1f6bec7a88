"""A fault of units that are several modules is found, reduced to two of them, and scripted."""

from __future__ import annotations

from pathlib import Path

from fsdpfuzz.case import anatomy, features
from tests.injected.hunting import assert_shown_by_its_script, case_of, found_by, hunt, linears

KEY = "collectives/mismatch/fsdp2"


def test_a_unit_that_ends_with_each_of_its_modules(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:fsdp2_group_ends_with_each_module"
    found = found_by(hunt(injection, tmp_path, number=150, until=(KEY,)), KEY)
    case = case_of(found)
    assert features(case)["grouped"] == "on"
    assert [len(anatomy(case).modules_of(unit)) for unit in anatomy(case).units] == [1, 2]
    assert linears(case) <= 2
    assert_shown_by_its_script(found)
