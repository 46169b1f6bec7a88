"""A finding's script shows it where the fault is, and nothing where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.corpus import Known
from fsdpfuzz.invariants import judge
from fsdpfuzz.loop import default_known, plant_launcher
from fsdpfuzz.pool import Pool
from fsdpfuzz.repro import Context, Verification, render, verify
from fsdpfuzz.spec import CaseSpec
from fsdpfuzz.verdict import Finding
from tests.quality.test_document_faults import FAULTS

FAULTY = [
    "offload_not_entered",
    "one_form_has_other_gradients",
    "frozen_units_have_no_hook",
    "order_is_not_checked",
    "one_rank_hears_nothing",
    "warnings_repeat",
]
KNOWN = [
    "fsdp1-no-shard-prefetch-recomputed",
    "fsdp1-offloaded-full-state",
    "fsdp1-order-error-of-originals",
    "fsdp2-changed-while-whole",
    "fsdp2-repeated-reentrant",
    "fsdp2-tracked-idle-unit",
]


def finding_in(case: CaseSpec, key: str, plant: str | None) -> Finding:
    with Pool(case.world_size, "gloo", plant=plant) as pool:
        found = judge(case, pool.run(case)).findings
    return next(finding for finding in found if finding.key.startswith(key))


def verified(
    case: CaseSpec, finding: Finding, folder: Path, plant: str | None = None
) -> Verification:
    script = folder / "repro.py"
    script.write_text(render(case, finding, Context(patience=10.0)))
    return verify(script, case.world_size, "gloo", finding, launcher=plant_launcher(plant))


@pytest.mark.parametrize("fault", FAULTY)
def test_the_script_of_a_document_fault(fault: str, tmp_path: Path) -> None:
    case, key = FAULTS[fault]
    plant = f"tests.quality.planted_documents:{fault}"
    finding = finding_in(case, key, plant)
    shown = verified(case, finding, tmp_path, plant)
    assert shown.reproduced, shown
    gone = verified(case, finding, tmp_path)
    assert gone.outcome == "not reproduced", gone


@pytest.mark.parametrize("name", KNOWN)
def test_the_script_of_a_known_finding(name: str, tmp_path: Path) -> None:
    file = default_known()
    assert file is not None
    (entry,) = (entry for entry in Known.load(file).entries if entry.id == name)
    case = entry.minimal()
    shown = verified(case, finding_in(case, "", None), tmp_path)
    assert shown.reproduced, shown
