"""Faults that leave all values right: other collectives, another time, memory not freed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import benchmarks.faults as benched
from benchmarks.faults._edit import EditError, chosen
from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Sequential,
)
from fsdpfuzz.case.operations import FullParams
from fsdpfuzz.case.units import Precision
from tests.quality.test_finding_scripts import finding_in, verified

INJECTIONS = "benchmarks.faults.injections"
LINES = 60
ITERATION = (Forward(), Backward())
UNITS = ("0", "1", "2", "")


def chain(plan: Fsdp1Plan | Fsdp2Plan, iterations: int = 1, ranks: int = 2) -> CaseSpec:
    """Three layers of different sizes."""
    return CaseSpec(
        world_size=ranks,
        model=Sequential(children=(Linear(out=4), Linear(out=2), Linear(out=6))),
        inputs=Dense(width=2),
        plan=plan,
        program=ITERATION * iterations,
    )


def first(*paths: str, **options: Any) -> Fsdp1Plan:
    return Fsdp1Plan(units=tuple(Fsdp1Unit(path=path, **options) for path in paths))


def second(**told: Any) -> Fsdp2Plan:
    """A unit each, the first or the last of which is told something."""
    at = "0" if "prefetched_in_forward" in told else "2"
    units = (Fsdp2Unit(path=path, **(told if path == at else {})) for path in UNITS)
    return Fsdp2Plan(units=tuple(units))


WIDER = Precision(param="bfloat16", reduce="float32")
HIGHER = Precision(param="bfloat16", output="float32")
FAULTS: dict[str, tuple[CaseSpec, str]] = {
    "fsdp1_root_freed_after_forward": (
        chain(first("")),
        "collectives/mismatch/fsdp1:all-gather-more",
    ),
    "fsdp2_reduces_in_low_precision": (
        chain(Fsdp2Plan(units=(Fsdp2Unit(path="", precision=WIDER),))),
        "collectives/mismatch/fsdp2:reduce-scatter-other",
    ),
    "fsdp1_prefetches_what_is_done": (
        chain(first(*UNITS)),
        "gathered_in_turn/mismatch/fsdp1:late",
    ),
    "fsdp1_prefetches_too_far": (
        chain(first(*UNITS, forward_prefetch=True), 2),
        "gathered_in_turn/mismatch/fsdp1:swapped",
    ),
    "fsdp2_forward_prefetch_ignored": (
        chain(second(prefetched_in_forward=("2",))),
        "gathered_in_turn/mismatch/fsdp2:swapped",
    ),
    "fsdp2_backward_list_ignored": (
        chain(second(prefetched_in_backward=("1", "0"))),
        "gathered_in_turn/mismatch/fsdp2:late",
    ),
    "fsdp2_reduces_at_the_end": (
        chain(second()),
        "gathered_in_turn/mismatch/fsdp2:late",
    ),
    "stale_low_precision_after_full": (
        msgspec.structs.replace(
            chain(first("", sharding="SHARD_GRAD_OP", precision=WIDER)),
            program=(Forward(grad=False), FullParams(), *ITERATION),
        ),
        "collectives/mismatch/fsdp1:all-gather-less",
    ),
    "fsdp2_output_dtype_ignored": (
        chain(Fsdp2Plan(units=(Fsdp2Unit(path="", precision=HIGHER),))),
        "output_dtype/mismatch/fsdp2",
    ),
    "fsdp2_smaller_mesh_stays_whole": (
        chain(second(reshard_after_forward=2), ranks=4),
        "freed_when_sharded/leak/fsdp2",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_collectives_is_found_and_shown_by_its_script(
    fault: str, tmp_path: Path
) -> None:
    case, key = FAULTS[fault]
    try:
        chosen(benched.FAULTS[fault])
    except EditError as error:
        pytest.skip(f"this torch has other code: {error}")
    injection = f"{INJECTIONS}:{fault}"
    finding = finding_in(case, key, injection)
    assert finding.key == key
    shown = verified(case, finding, tmp_path, injection)
    assert shown.reproduced, shown
    gone = verified(case, finding, tmp_path)
    assert gone.outcome == "not reproduced", gone
    assert len((tmp_path / "repro.py").read_text().splitlines()) <= LINES
