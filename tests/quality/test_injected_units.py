"""A fault injected in one unit is found, shrunk to next to nothing, and shown by a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import Backward, Step
from tests.injected.hunting import (
    UNITS,
    assert_shown_by_its_script,
    case_of,
    found_by,
    hunt,
    linears,
)

STATE = "tests.quality.injected_state"
LINES = 60
"""Of a script with two units, of which one may lie in an adapter."""


@pytest.mark.parametrize(
    ("injection", "property_name", "key"),
    [
        (f"{UNITS}:second_unit_not_averaged", "parity", "grad_parity/mismatch/fsdp2"),
        (f"{UNITS}:second_unit_parts_the_ranks", "parity", "no_hang/hang/fsdp2"),
        (f"{UNITS}:second_unit_kills_its_rank", "parity", "no_rank_death/rank_death/fsdp2"),
        (f"{STATE}:fsdp2_loses_a_key", "state_dict", "state_dict_keys/mismatch/fsdp2:missing"),
    ],
    ids=["not averaged", "hang", "death", "lost key"],
)
def test_a_fault_of_one_unit(injection: str, property_name: str, key: str, tmp_path: Path) -> None:
    number = 8 if "hang" in key else 20  # each hang costs more than a second
    summary = hunt(injection, tmp_path, property_name=property_name, number=number, until=(key,))
    found = found_by(summary, key)
    case = case_of(found)
    assert linears(case) <= 2
    assert case.world_size == 2
    assert sum(isinstance(op, Step) for op in case.program) <= 1
    assert sum(isinstance(op, Backward) for op in case.program) <= 1
    assert_shown_by_its_script(found, lines=LINES)


def test_two_faults_at_once_are_told_apart(tmp_path: Path) -> None:
    keys = ("grad_parity/mismatch/fsdp2", "resharded_after_backward/leak/fsdp2")
    # Both are faults of a second unit: met in one case, they may well be taken for one cause.
    summary = hunt(f"{UNITS}:two_at_once", tmp_path, until=keys, seed=1)
    averaging, sharding = (found_by(summary, key) for key in keys)
    assert averaging.repro != sharding.repro
    assert linears(case_of(averaging)) <= 2
    for found in (averaging, sharding):
        assert_shown_by_its_script(found, lines=LINES)
