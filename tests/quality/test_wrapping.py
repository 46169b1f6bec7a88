"""A fault in how fsdp1 makes units is found, and its finding keeps the way that it needs."""

from __future__ import annotations

from pathlib import Path

from fsdpfuzz.case import anatomy, features
from tests.injected.hunting import (
    LONGER,
    assert_shown_by_its_script,
    case_of,
    found_by,
    hunt,
    linears,
)

INJECTIONS = "benchmarks.faults.injections"
KEY = "wrapped_as_planned/mismatch/fsdp1"


def test_units_that_hold_hardly_anything_else(tmp_path: Path) -> None:
    injection = f"{INJECTIONS}:fsdp1_units_counted_again"
    summary = hunt(injection, tmp_path, apis=("fsdp1",), number=150, until=(KEY,))
    found = found_by(summary, KEY)
    case = case_of(found)
    assert features(case)["wrap"] == "size_policy"
    assert linears(case) <= 2
    assert_shown_by_its_script(found)


def test_what_is_ignored_is_wrapped(tmp_path: Path) -> None:
    injection = f"{INJECTIONS}:fsdp1_ignored_wrapped_by_function"
    summary = hunt(injection, tmp_path, apis=("fsdp1",), number=400, until=(KEY,))
    found = found_by(summary, KEY)
    case = case_of(found)
    assert features(case)["wrap"] in ("transformer_policy", "lambda_policy", "size_policy")
    assert features(case)["ignored"] == "on"
    assert_shown_by_its_script(found)


def test_options_that_are_lost_on_the_way(tmp_path: Path) -> None:
    injection = f"{INJECTIONS}:fsdp1_wrap_options_lost"
    summary = hunt(injection, tmp_path, apis=("fsdp1",), number=200, until=("",))
    found = found_by(summary, "")
    case = case_of(found)
    assert features(case)["wrap"] == "enable_wrap"
    assert len(anatomy(case).units) == 2
    assert_shown_by_its_script(found, lines=LONGER)
