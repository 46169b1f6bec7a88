"""A fault of optimizer state dicts is found, reduced, and shown by a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case.operations import OptimState, Rebuild
from fsdpfuzz.loop import Api
from tests.injected.hunting import (
    MAX_LINES,
    assert_shown_by_its_script,
    case_of,
    found_by,
    hunt,
    linears,
)


@pytest.mark.parametrize(
    ("api", "injection"),
    [
        ("fsdp1", "benchmarks.faults.injections:optimizer_state_shares_memory"),
        ("fsdp2", "tests.injected.optim:fsdp2_momenta_of_one_rank"),
    ],
)
def test_what_is_saved_is_wrong(api: Api, injection: str, tmp_path: Path) -> None:
    key = f"optim_state/mismatch/{api}"
    found = found_by(
        hunt(
            injection, tmp_path, property_name="state_dict", number=150, apis=(api,), until=(key,)
        ),
        key,
    )
    case = case_of(found)
    assert linears(case) <= 2
    # An iteration, and the state that shows it: as it was saved, or as loaded from a checkpoint on
    # disk, which is a model and a script more.
    rebuilt = any(isinstance(op, Rebuild) for op in case.program)
    assert isinstance(case.program[-1], OptimState)
    assert len(case.program) <= 4 + rebuilt
    assert_shown_by_its_script(found, lines=125 if rebuilt else MAX_LINES)


def test_loading_leaves_gradients(tmp_path: Path) -> None:
    """Into an optimizer without state, which is made by a step with gradients of zeros."""
    key = "optim_state/mismatch/fsdp2"
    found = found_by(
        hunt(
            "benchmarks.faults.injections:saving_leaves_zero_gradients",
            tmp_path,
            property_name="state_dict",
            number=150,
            apis=("fsdp2",),
            until=(key,),
        ),
        key,
    )
    case = case_of(found)
    assert linears(case) <= 2
    assert isinstance(case.program[-1], OptimState | Rebuild)
    assert found.finding.name == "gradients_left"
    assert_shown_by_its_script(found, lines=125)
