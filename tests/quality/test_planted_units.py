"""A fault planted in one unit is found, shrunk to next to nothing, and shown by a script."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fsdpfuzz.corpus import read_entry
from fsdpfuzz.loop import (
    PROFILES,
    Found,
    RunSettings,
    SessionSettings,
    Summary,
    default_known,
    run,
    write_script,
)
from fsdpfuzz.repro import verify
from fsdpfuzz.spec import Backward, CaseSpec, Linear, Step, case_places

UNITS = "tests.planted.units"
STATE = "tests.quality.planted_state"
MAX_LINES = 60


SHORT = replace(PROFILES["dev"], shrink_seconds=40.0)


def hunt(plant: str, folder: Path, *, property_name: str = "parity", number: int = 30) -> Summary:
    settings = RunSettings(
        session=SessionSettings(
            output=folder, known=default_known(), plant=plant, seed=5, profile=SHORT
        ),
        properties=(property_name,),
        max_examples=number,
        apis=("fsdp2",),
        database=None,
    )
    return run(settings, lambda _: None, script=write_script)


def found_by(summary: Summary, start: str) -> Found:
    """The first new finding whose key starts so."""
    new = [found for found in summary.findings if found.known is None]
    for found in new:
        if found.finding.key.startswith(start):
            return found
    pytest.fail(f"no {start} among {[found.finding.key for found in new]}")


def case_of(found: Found) -> CaseSpec:
    return read_entry(found.case).case


def linears(case: CaseSpec) -> int:
    return sum(isinstance(place.node, Linear) for place in case_places(case))


def assert_shown_by_its_script(found: Found, *, lines: int = MAX_LINES) -> None:
    """The script shows the finding where the fault is, as the run has seen, and only there."""
    script = found.script
    assert script is not None
    assert script.path is not None
    assert script.confirmed, script.note
    assert len(script.path.read_text().splitlines()) <= lines
    without = verify(script.path, case_of(found).world_size, "gloo", found.finding)
    assert without.outcome == "not reproduced", without.output


@pytest.mark.parametrize(
    ("plant", "property_name", "key"),
    [
        (f"{UNITS}:second_unit_not_averaged", "parity", "grad_parity/mismatch/fsdp2:other"),
        (f"{UNITS}:second_unit_parts_the_ranks", "parity", "no_hang/hang/fsdp2"),
        (f"{UNITS}:second_unit_kills_its_rank", "parity", "no_rank_death/rank_death/fsdp2"),
        (f"{STATE}:fsdp2_loses_a_key", "state_dict", "state_dict_keys/mismatch/fsdp2:missing"),
    ],
    ids=["not averaged", "hang", "death", "lost key"],
)
def test_a_fault_of_one_unit(plant: str, property_name: str, key: str, tmp_path: Path) -> None:
    found = found_by(hunt(plant, tmp_path, property_name=property_name), key)
    case = case_of(found)
    assert linears(case) <= 2
    assert case.world_size == 2
    assert sum(isinstance(op, Step) for op in case.program) <= 1
    assert sum(isinstance(op, Backward) for op in case.program) <= 1
    assert_shown_by_its_script(found)


def test_two_faults_at_once_are_told_apart(tmp_path: Path) -> None:
    summary = hunt(f"{UNITS}:two_at_once", tmp_path)
    averaging = found_by(summary, "grad_parity/mismatch/fsdp2:other")
    sharding = found_by(summary, "resharded_after_backward/leak/fsdp2")
    assert averaging.repro != sharding.repro
    assert linears(case_of(averaging)) <= 2
    for found in (averaging, sharding):
        assert_shown_by_its_script(found, lines=90)
