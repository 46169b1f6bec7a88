"""What goes wrong only around a registered forward method is found, reduced and scripted."""

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


def test_a_registered_method_that_gathers_nothing(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:fsdp2_method_gathers_nothing"
    found = found_by(hunt(injection, tmp_path, number=100, until=("no_crash",)), "no_crash")
    case = case_of(found)
    assert linears(case) <= 2
    assert features(case)["forward_method"] != "no"
    assert_shown_by_its_script(found, lines=LONGER)
