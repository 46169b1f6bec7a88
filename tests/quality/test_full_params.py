"""A fault of whole parameters is found, reduced to next to nothing, and shown by a script."""

from __future__ import annotations

from pathlib import Path

from fsdpfuzz.case import StateDict
from fsdpfuzz.case.operations import FullParams
from tests.injected.hunting import assert_shown_by_its_script, case_of, found_by, hunt, linears


def test_what_is_written_is_lost(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:local_shard_not_written"
    key = "param_parity/mismatch/fsdp1"
    found = found_by(hunt(injection, tmp_path, number=120, apis=("fsdp1",), until=(key,)), key)
    case = case_of(found)
    assert linears(case) <= 1
    assert found.finding.operation == "full_params"
    (op,) = case.program
    assert isinstance(op, FullParams)
    assert len(op.written) == 1
    assert not any(isinstance(op, StateDict) for op in case.program)
    assert_shown_by_its_script(found)
