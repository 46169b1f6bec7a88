"""A fault in saving, loading or freeing is found, and by the rule that is there for it."""

from __future__ import annotations

import msgspec
import pytest

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
    Plan,
    Precision,
    Sequential,
    StateDict,
    Step,
)
from fsdpfuzz.invariants import judge
from fsdpfuzz.pool import Pool
from fsdpfuzz.seeds import MEMORY
from tests.injected.by_hand import judged

FSDP1 = Fsdp1Plan(units=(Fsdp1Unit(path="0"), Fsdp1Unit(path="")))
NARROW = Fsdp1Plan(units=(Fsdp1Unit(path="", precision=Precision(param="bfloat16")),))
FSDP2 = Fsdp2Plan(units=(Fsdp2Unit(path="0"), Fsdp2Unit(path="")))
TRAIN = (Forward(), Backward(), Step())


def case(plan: Plan, *program: Forward | Backward | Step | StateDict) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=3), Linear(out=2))),
        inputs=Dense(width=3),
        plan=plan,
        program=program,
    )


TRACKED = MEMORY[1].small
assert TRACKED is not None

KEPT = (Fsdp1Unit(path="0", sharding="SHARD_GRAD_OP"), Fsdp1Unit(path="1"), Fsdp1Unit(path=""))
ACCUMULATING = msgspec.structs.replace(
    case(Fsdp1Plan(units=KEPT), Forward(sync=False), Backward(), *TRAIN),
    model=Sequential(children=(Linear(out=3), Linear(out=2), Linear(out=2))),
)
"""Unit 0 is whole after the first backward as promised."""

FAULTS = {
    "fsdp1_loses_a_key": (case(FSDP1, StateDict()), "state_dict_keys/mismatch/fsdp1:missing"),
    "fsdp1_renames_a_key": (
        case(FSDP1, StateDict()),
        "state_dict_keys/mismatch/fsdp1:unexpected",
    ),
    "fsdp1_saves_rounded_values": (
        case(FSDP1, StateDict()),
        "state_dict_values/mismatch/fsdp1",
    ),
    "fsdp1_loads_without_writing_back": (
        case(FSDP1, *TRAIN, StateDict()),
        "state_dict_round_trip/mismatch/fsdp1",
    ),
    "fsdp2_loses_a_key": (
        case(FSDP2, *TRAIN, StateDict()),
        "state_dict_keys/mismatch/fsdp2:missing",
    ),
    "fsdp2_renames_a_key": (
        case(FSDP2, StateDict(), *TRAIN),
        "state_dict_keys/mismatch/fsdp2:unexpected",
    ),
    "fsdp2_saves_another_dtype": (
        case(FSDP2, StateDict()),
        "state_dict_keys/mismatch/fsdp2:misshapen",
    ),
    "fsdp2_leaves_a_value_behind": (
        case(FSDP2, StateDict()),
        "state_dict_round_trip/mismatch/fsdp2",
    ),
    "fsdp1_keeps_low_precision_shards": (case(NARROW, *TRAIN), "shard_bytes/leak/fsdp1:more"),
    "fsdp2_keeps_a_unit_whole": (case(FSDP2, *TRAIN), "shard_bytes/leak/fsdp2:more"),
    "fsdp2_keeps_whole_gradients": (case(FSDP2, *TRAIN), "grad_bytes/leak/fsdp2:more"),
    "tracker_forgets_a_module": (TRACKED, "tracker_accuracy/mismatch/fsdp2:shards-less"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_injected_fault_is_found(fault: str) -> None:
    example, key = FAULTS[fault]
    found = judged(example, f"tests.quality.injected_state:{fault}")
    assert any(finding.key.startswith(key) for finding in found.findings), found


def test_a_unit_left_whole_is_found_also_without_synchronisation() -> None:
    injection = "benchmarks.faults.injections:fsdp1_accumulation_never_frees"
    found = judged(ACCUMULATING, injection).findings
    assert ("resharded_after_backward/leak/fsdp1", 1) in {(f.key, f.op) for f in found}
    # The unit is not gathered again, either.
    assert {f.invariant for f in found} == {"resharded_after_backward", "collectives"}


def test_without_a_fault_the_same_cases_pass() -> None:
    with Pool(2, "gloo") as pool:
        for example in (ACCUMULATING, *(example for example, _ in FAULTS.values())):
            assert judge(example, pool.run(example)).status == "passed"
