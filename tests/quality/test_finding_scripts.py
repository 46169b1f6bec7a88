"""A finding's script shows it where the fault is, and nothing where it is not."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from msgspec.structs import replace

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    StateDict,
)
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.operations import Clip
from fsdpfuzz.invariants import judge
from fsdpfuzz.known import Known
from fsdpfuzz.loop import default_known, injection_launcher
from fsdpfuzz.pool import Pool
from fsdpfuzz.repro import Context, Verification, render
from fsdpfuzz.verdict import Finding
from tests.injected.forked import verify_forked
from tests.quality import test_document_faults as document_faults
from tests.quality import test_state_and_memory_faults as state_faults

DOCUMENTS = "tests.quality.injected_documents"
STATE = "tests.quality.injected_state"
FAULTY = [
    (DOCUMENTS, "offload_not_entered"),
    (DOCUMENTS, "one_form_has_other_gradients"),
    (DOCUMENTS, "nothing_is_freed"),
    (DOCUMENTS, "frozen_units_have_no_hook"),
    (DOCUMENTS, "order_is_not_checked"),
    (DOCUMENTS, "one_rank_hears_nothing"),
    (DOCUMENTS, "warnings_repeat"),
    (STATE, "fsdp1_loses_a_key"),
    (STATE, "fsdp1_saves_rounded_values"),
    (STATE, "fsdp1_loads_without_writing_back"),
    (STATE, "fsdp2_saves_another_dtype"),
    (STATE, "fsdp2_leaves_a_value_behind"),
    (STATE, "fsdp1_keeps_low_precision_shards"),
    (STATE, "fsdp2_keeps_a_unit_whole"),
    (STATE, "fsdp2_keeps_whole_gradients"),
    (STATE, "tracker_forgets_a_module"),
]
CASES = {DOCUMENTS: document_faults.FAULTS, STATE: state_faults.FAULTS}
KNOWN = [
    "fsdp1-no-shard-prefetch-recomputed",
    "fsdp1-offloaded-full-state",
    "fsdp1-order-error-of-originals",
    "fsdp2-changed-while-whole",
    "fsdp2-repeated-reentrant",
    "fsdp2-tracked-idle-unit",
]

SMALL = CaseSpec(
    world_size=2,
    model=Linear(out=2, bias=False),
    inputs=Dense(width=2),
    plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
    program=(),
)
READ = {
    "fsdp2_axes_of_the_mesh_swapped": (
        replace(SMALL, mesh=Mesh(replicate=1, shard=2), program=(StateDict(form="sharded"),)),
        "no_crash/crash/fsdp2:RuntimeError",
    ),
    "fsdp2_accumulation_never_reshards": (
        replace(SMALL, program=(Forward(), Backward(), Clip(max_norm=0.1))),
        "no_crash/crash/fsdp2:AttributeError",
    ),
}
"""Whose training raises nothing until somebody gathers what it gives."""


def finding_in(case: CaseSpec, key: str, injection: str | None) -> Finding:
    with Pool(case.world_size, "gloo", injection=injection) as pool:
        found = judge(case, pool.run(case)).findings
    return next(finding for finding in found if finding.key.startswith(key))


def verified(
    case: CaseSpec,
    finding: Finding,
    folder: Path,
    injection: str | None = None,
    *,
    reads: bool = False,
) -> Verification:
    script = folder / "repro.py"
    script.write_text(render(case, finding, Context(patience=10.0), reads=reads))
    return verify_forked(
        script, case.world_size, "gloo", finding, launcher=injection_launcher(injection)
    )


@pytest.mark.parametrize(("module", "fault"), FAULTY)
def test_the_script_of_an_injected_fault(module: str, fault: str, tmp_path: Path) -> None:
    case, key = CASES[module][fault]
    injection = f"{module}:{fault}"
    finding = finding_in(case, key, injection)
    shown = verified(case, finding, tmp_path, injection)
    assert shown.reproduced, shown
    gone = verified(case, finding, tmp_path)
    assert gone.outcome == "not reproduced", gone


@pytest.mark.parametrize("fault", READ)
def test_what_raises_as_it_is_read_is_read_by_the_script(fault: str, tmp_path: Path) -> None:
    case, key = READ[fault]
    injection = f"benchmarks.faults.injections:{fault}"
    finding = finding_in(case, key, injection)
    assert not verified(case, finding, tmp_path, injection).reproduced
    shown = verified(case, finding, tmp_path, injection, reads=True)
    assert shown.reproduced, shown
    gone = verified(case, finding, tmp_path, reads=True)
    assert gone.outcome == "not reproduced", gone


@pytest.mark.parametrize("name", KNOWN)
def test_the_script_of_a_known_finding(name: str, tmp_path: Path) -> None:
    folder = default_known()
    assert folder is not None
    known = Known.load(folder)
    if not known.defects[name].applies(torch=version("torch"), backend="gloo"):
        pytest.skip(f"torch {version('torch')} does not have it, as the entry says")
    case = known.minimal(name)
    shown = verified(case, finding_in(case, "", None), tmp_path)
    assert shown.reproduced, shown
