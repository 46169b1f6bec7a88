"""A hook of the user's that FSDP1 does not call is found, and its finding keeps the hook."""

from __future__ import annotations

from pathlib import Path

from fsdpfuzz.case import anatomy
from fsdpfuzz.case.communication import Communication
from tests.injected.hunting import (
    LONGER,
    assert_shown_by_its_script,
    case_of,
    found_by,
    hunt,
    linears,
)

INJECTIONS = "benchmarks.faults.injections"
KEY = "grad_parity/mismatch/fsdp1"


def test_a_hook_that_is_never_called(tmp_path: Path) -> None:
    injection = f"{INJECTIONS}:fsdp1_comm_hook_never_called"
    found = found_by(hunt(injection, tmp_path, apis=("fsdp1",), number=400, until=(KEY,)), KEY)
    case = case_of(found)
    assert linears(case) == 1
    assert case.communication == Communication(comm_hook="halving")
    assert_shown_by_its_script(found, lines=LONGER)


def test_a_hook_that_inner_units_do_not_get(tmp_path: Path) -> None:
    injection = f"{INJECTIONS}:fsdp1_comm_hook_of_root_alone"
    found = found_by(hunt(injection, tmp_path, apis=("fsdp1",), number=400, until=(KEY,)), KEY)
    case = case_of(found)
    assert case.communication == Communication(comm_hook="halving")
    assert len(anatomy(case).units) == 2
    assert_shown_by_its_script(found, lines=LONGER)
