"""A fault of clipping is found, reduced to next to nothing, and shown by a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case.operations import Clip
from fsdpfuzz.loop import Api
from tests.injected.hunting import assert_shown_by_its_script, case_of, found_by, hunt, linears


@pytest.mark.parametrize(
    ("fault", "api", "key"),
    [
        ("fsdp1_norm_of_one_rank", "fsdp1", "clip_norm/mismatch/fsdp1"),
        ("fsdp1_always_by_the_2_norm", "fsdp1", "clip_norm/mismatch/fsdp1"),
        ("fsdp2_norm_of_one_rank", "fsdp2", "clip_norm/mismatch/fsdp2"),
        ("fsdp2_scales_twice", "fsdp2", "grad_parity/mismatch/fsdp2"),
    ],
)
def test_a_fault_of_clipping(fault: str, api: Api, key: str, tmp_path: Path) -> None:
    injection = f"tests.injected.clip:{fault}"
    found = found_by(hunt(injection, tmp_path, apis=(api,), number=120, until=(key,)), key)
    case = case_of(found)
    assert found.finding.operation == "clip"
    assert linears(case) <= 2
    clips = [op for op in case.program if isinstance(op, Clip)]
    assert len(clips) == 1
    assert clips[0].norm_type != 2 or fault != "fsdp1_always_by_the_2_norm"
    assert [op.kind() for op in case.program] == ["forward", "backward", "clip"]
    assert_shown_by_its_script(found)
