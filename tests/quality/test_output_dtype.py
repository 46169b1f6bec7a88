"""An ``output_dtype`` that has no effect is found, shrunk, and shown by a script."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fsdpfuzz.case import (
    ITERATION,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Precision,
    chain,
    features,
)
from tests.injected.by_hand import assert_scripted, judged
from tests.injected.hunting import assert_shown_by_its_script, case_of, found_by, hunt, linears


def test_an_output_dtype_that_has_no_effect(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:fsdp2_output_dtype_ignored"
    key = "no_crash/crash/fsdp2"
    summary = hunt(injection, tmp_path, property_name="fine_tune", number=240, until=(key,))
    found = found_by(summary, key)
    case = case_of(found)
    assert linears(case) <= 2
    assert features(case)["precision_output"] == "on"
    assert_shown_by_its_script(found)


def test_an_evaluation_that_puts_out_another(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:fsdp2_output_dtype_of_training_alone"
    program = (*ITERATION, Forward(grad=False))
    plain = chain("fsdp2", (3, 4, 2), (), 2, program)
    low = Fsdp2Unit(path="", precision=Precision(param="bfloat16", output="float32"))
    case = msgspec.structs.replace(plain, plan=Fsdp2Plan(units=(low,)))
    (found,) = judged(case, injection).findings
    assert found.key == "output_dtype/mismatch/fsdp2"
    assert found.op == len(ITERATION)
    assert_scripted(case, found, injection, tmp_path)
    assert judged(case).findings == ()
