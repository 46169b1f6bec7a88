"""What goes wrong only after a forward under ``torch.inference_mode`` is found and reduced."""

from __future__ import annotations

from pathlib import Path

from fsdpfuzz.case import features
from tests.injected.hunting import (
    assert_shown_by_its_script,
    case_of,
    found_by,
    hunt,
    linears,
)

KEY = "no_crash/crash/fsdp2"


def test_what_an_evaluation_leaves_to_training(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:fsdp2_inference_gathers_elsewhere"
    summary = hunt(injection, tmp_path, number=200, until=(KEY,), seed=2)
    found = found_by(summary, KEY)
    case = case_of(found)
    assert linears(case) <= 2
    assert features(case)["inference_mode"] == "later"
    assert_shown_by_its_script(found)
