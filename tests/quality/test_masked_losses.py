"""A fault that takes a rank without gradients is found, reduced to that, and scripted."""

from __future__ import annotations

from pathlib import Path

from fsdpfuzz.case import Forward, features
from tests.injected.hunting import assert_shown_by_its_script, case_of, found_by, hunt, linears


def test_a_rank_whose_gradients_are_zeros(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:fsdp2_idle_rank_keeps_nothing"
    key = "grad_parity/mismatch/fsdp2"
    found = found_by(hunt(injection, tmp_path, number=60, until=(key,)), key)
    case = case_of(found)
    assert linears(case) <= 2
    assert features(case)["masked"] == "all"
    assert [op.masked for op in case.program if isinstance(op, Forward)] == [0]
    assert found.script is not None
    assert any("zero on one rank" in line for line in found.script.ablation)
    assert_shown_by_its_script(found)
