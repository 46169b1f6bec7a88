"""Keyword arguments that a wrapper loses, or that FSDP does not cast, are found, and scripted."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import features
from tests.injected.hunting import (
    LONGER,
    assert_shown_by_its_script,
    case_of,
    found_by,
    hunt,
    linears,
)


def test_offloading_that_drops_keyword_arguments(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:offload_loses_keyword_arguments"
    found = found_by(
        hunt(injection, tmp_path, property_name="checkpoint", number=300, until=("no_crash",)),
        "no_crash",
    )
    case = case_of(found)
    assert linears(case) <= 2
    # What a module calls by keyword, or the program does.
    assert features(case)["keywords"] == "input" or case.keyword_input
    # Two classes of the model's own.
    assert_shown_by_its_script(found, lines=LONGER)


@pytest.mark.parametrize("fault", ["fsdp1_root_keywords_not_cast", "fsdp2_keywords_not_cast"])
def test_inputs_by_keyword_that_are_not_cast(fault: str, tmp_path: Path) -> None:
    summary = hunt(
        f"benchmarks.faults.injections:{fault}",
        tmp_path,
        property_name="fine_tune",
        number=150,
        until=("no_crash",),
        apis=("fsdp1" if fault.startswith("fsdp1") else "fsdp2",),
    )
    found = found_by(summary, "no_crash")
    case = case_of(found)
    assert linears(case) <= 2
    assert case.keyword_input
    assert features(case)["keywords"] == "no"
    assert_shown_by_its_script(found)
