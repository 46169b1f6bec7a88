"""Keyword arguments that go lost on their way through a wrapper are found, and scripted."""

from __future__ import annotations

from pathlib import Path

from fsdpfuzz.case import features
from tests.injected.hunting import assert_shown_by_its_script, case_of, found_by, hunt, linears


def test_offloading_that_drops_keyword_arguments(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:offload_loses_keyword_arguments"
    found = found_by(hunt(injection, tmp_path, number=300, until=("no_crash",)), "no_crash")
    case = case_of(found)
    assert linears(case) <= 2
    assert features(case)["keywords"] == "input"
    assert_shown_by_its_script(found)
