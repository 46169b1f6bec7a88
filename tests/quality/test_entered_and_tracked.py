"""What is entered and ends as asked: checkpoints, activation offload, the memory tracker.

Each fault is injected where torch itself would have it, and shown by a script of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import (
    CaseSpec,
    Checkpoint,
    Dense,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Plan,
    Sequential,
)
from tests.injected.by_hand import ONCE, assert_scripted, judged

FSDP1 = Fsdp1Plan(units=(Fsdp1Unit(path=""), Fsdp1Unit(path="1")))
FSDP2 = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="1")))


def case(plan: Plan, *checkpoints: Checkpoint, tracked: bool = False) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=4), Linear(out=3))),
        inputs=Dense(width=4, requires_grad=any(c.reentrant for c in checkpoints)),
        plan=plan,
        checkpoints=checkpoints,
        program=(*ONCE, *ONCE),
        probes=("mem_tracker",) if tracked else (),
    )


PLAIN, REENTRANT = Checkpoint(path="0"), Checkpoint(path="1", reentrant=True)
TRACKED = case(FSDP2, tracked=True)
FAULTS = {
    "checkpoint_does_not_recompute": [
        (case(FSDP1, PLAIN), "checkpoint_entered/mismatch/fsdp1:less"),
        (case(FSDP2, PLAIN), "checkpoint_entered/mismatch/fsdp2:less"),
        (case(FSDP1, REENTRANT), "reentrant_entered/mismatch/fsdp1:less"),
    ],
    "tracker_overlooks_freeing": [(TRACKED, "tracker_accuracy/mismatch/fsdp2:whole-more")],
    "tracker_stays_in_place": [(TRACKED, "tracker_ends/leak/fsdp2:UntypedStorage.resize_")],
    "tracker_leaves_its_hooks": [(TRACKED, "tracker_ends/leak/fsdp2:pre_backward")],
}


@pytest.mark.parametrize(
    ("fault", "given", "key"),
    [(fault, *example) for fault, examples in FAULTS.items() for example in examples],
)
def test_a_fault_shows_and_so_does_its_script(
    fault: str, given: CaseSpec, key: str, tmp_path: Path
) -> None:
    injection = f"benchmarks.faults.injections:{fault}"
    verdict = judged(given, injection)
    found = [finding for finding in verdict.findings if finding.key.startswith(key)]
    assert found, [finding.key for finding in verdict.findings]
    assert judged(given).status == "passed"
    assert_scripted(given, found[0], injection, tmp_path)
