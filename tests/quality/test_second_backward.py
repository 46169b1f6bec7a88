"""A fault that a second backward over a graph alone meets is found and reduced to it."""

from __future__ import annotations

from pathlib import Path

from fsdpfuzz.case import features
from tests.injected.hunting import assert_shown_by_its_script, case_of, found_by, hunt, linears


def test_a_second_backward_that_fails(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:fsdp2_second_backward_fails"
    found = found_by(hunt(injection, tmp_path, number=200, until=("no_crash",)), "no_crash")
    case = case_of(found)
    assert linears(case) <= 1
    assert features(case)["retained_graph"] == "on"
    assert_shown_by_its_script(found)
