"""The rules on state dicts and memory pass what is right and fail on the fault they are for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    EncoderLayer,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Optimizer,
    Rebuild,
    Sequential,
    StateDict,
    Step,
    Switch,
    anatomy,
    digest,
)
from fsdpfuzz.expect import grad_bytes, managed_bytes, shard_bytes, whole_bytes
from fsdpfuzz.invariants import judge
from fsdpfuzz.observations import (
    Comparison,
    Observation,
    RankReport,
    Subject,
    UnitState,
    WrongEntry,
)
from fsdpfuzz.verdict import Finding

CASE = CaseSpec(
    world_size=2,
    model=Linear(out=3),
    inputs=Dense(width=3),
    plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
    program=(Forward(), Backward(), Step(), StateDict()),
    optimizer=Optimizer(name="adam"),
)
TRACKED = msgspec.structs.replace(
    CASE, program=(Forward(), Backward(), Step()), probes=("mem_tracker",)
)
ANATOMY = anatomy(CASE)
SHARDS = shard_bytes(ANATOMY)
MORE = "shard_bytes/leak/fsdp2:more"


def observed(case: CaseSpec, *subjects: Subject) -> Observation:
    reports = tuple(
        RankReport(rank=rank, digest=digest(case), subjects=(subject,), live=1)
        for rank, subject in enumerate(subjects)
    )
    return Observation(
        digest=digest(case), world_size=2, backend="gloo", torch="2.13.0", reports=reports
    )


def subject(rank: int = 0, **changes: Any) -> Subject:
    last = max(i for i, op in enumerate(CASE.program) if isinstance(op, Backward))
    right = Subject(
        units=("",),
        unit_states=(UnitState(op=last, unsharded=()),),
        states_taken=1,
        shard_bytes=SHARDS,
        grad_bytes=grad_bytes(ANATOMY, rank),
    )
    return msgspec.structs.replace(right, **changes)


def comparison(quantity: str, **changes: Any) -> Comparison:
    exact = {
        "quantity": quantity,
        "name": "weight",
        "op": 3,
        "error": 0.0,
        "baseline": 0.0,
        "scale": 1.0,
        "floor": 1.0,
        "observed": 0.5,
        "expected": 0.5,
        "exact": True,
    }
    return msgspec.convert(exact | changes, Comparison)


def findings(case: CaseSpec, first: Subject, second: Subject | None = None) -> list[Finding]:
    return list(judge(case, observed(case, first, second or subject(1))).findings)


def keys(case: CaseSpec, first: Subject, second: Subject | None = None) -> list[str]:
    return [finding.key for finding in findings(case, first, second)]


def wrong(kind: str, key: str = "weight") -> WrongEntry:
    return msgspec.convert({"op": 3, "key": key, "kind": kind}, WrongEntry)


def test_what_is_right_passes() -> None:
    right = (comparison("state_dict"), comparison("reloaded"))
    assert keys(CASE, subject(comparisons=right)) == []


@pytest.mark.parametrize("kind", ["missing", "unexpected", "misshapen"])
def test_keys_shapes_and_dtypes(kind: str) -> None:
    (finding,) = findings(CASE, subject(wrong_entries=(wrong(kind),)))
    assert finding.key == f"state_dict_keys/mismatch/fsdp2:{kind}"
    assert (finding.name, finding.unit, finding.op) == ("weight", "", 3)
    assert (finding.operation, finding.ranks) == ("state_dict", (0,))


def test_values_of_the_state_dict() -> None:
    odd = comparison("state_dict", error=1e-9, observed=0.500000001)
    (finding,) = findings(CASE, subject(comparisons=(odd,)))
    assert finding.key == "state_dict_values/mismatch/fsdp2"
    assert (finding.detail, finding.observed) == ("other", "0.500000001")


def test_values_that_follow_from_a_wrong_gradient_are_not_told_again() -> None:
    gradient = comparison("grad", op=1, error=1.0, exact=False, eps=1e-7, observed=7.0)
    odd = comparison("state_dict", error=1.0)
    found = keys(CASE, subject(comparisons=(odd, gradient)))
    assert found == ["grad_parity/mismatch/fsdp2"]


def test_what_a_load_restores() -> None:
    odd = comparison("reloaded", error=0.5, observed=0.0)
    (finding,) = findings(CASE, subject(comparisons=(odd,)))
    assert finding.key == "state_dict_round_trip/mismatch/fsdp2"
    assert finding.detail == "zero"


def test_each_kind_of_deviation_is_told_once_over_all_ranks() -> None:
    odd = comparison("reloaded", error=0.5, observed=0.0)
    found = keys(CASE, subject(comparisons=(odd,)), subject(1, comparisons=(odd,)))
    assert found == ["state_dict_round_trip/mismatch/fsdp2"]


def test_each_kind_of_odd_key_is_told_once_over_all_ranks() -> None:
    first = subject(wrong_entries=(wrong("missing"), wrong("unexpected", "odd")))
    second = subject(1, wrong_entries=(wrong("missing", "bias"),))
    assert keys(CASE, first, second) == [
        "state_dict_keys/mismatch/fsdp2:missing",
        "state_dict_keys/mismatch/fsdp2:unexpected",
    ]


def test_more_and_fewer_bytes_of_parameters() -> None:
    assert keys(CASE, subject(shard_bytes=2 * SHARDS)) == [MORE]
    assert keys(CASE, subject(shard_bytes=SHARDS - 4)) == ["shard_bytes/mismatch/fsdp2:less"]


def test_memory_is_kept_by_the_units_of_the_last_plan() -> None:
    """Found by drawing: the first plan's units were asked for."""
    inner = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0")))
    case = msgspec.structs.replace(
        CASE,
        model=Sequential(children=(Linear(out=2),)),
        program=(Rebuild(plan=inner), Forward(), Backward()),
        keep_unsharded_storage=True,
    )
    a = anatomy(case).last
    shards, whole = shard_bytes(a), whole_bytes(a, a.units)
    for held, found in ((shards + whole, []), (shards + whole + 4, [MORE])):
        seen = subject(
            units=("", "0"),
            unit_states=(UnitState(op=2, unsharded=()),),
            states_taken=0,
            shard_bytes=held,
            grad_bytes=grad_bytes(a, 0),
        )
        assert keys(case, seen, seen) == found


def test_units_that_no_backward_reached_may_stay_whole() -> None:
    assert keys(CASE, subject(shard_bytes=2 * SHARDS, unit_states=())) == []


def test_beside_a_unit_that_no_backward_reached_a_leak_is_told() -> None:
    """Unit 1 may be whole: 2 ranks' shards of 2 rows of 4 bytes, of weight and bias."""
    case = msgspec.structs.replace(
        CASE,
        model=Sequential(children=(Linear(out=3), Linear(out=3))),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path="0"), Fsdp2Unit(path="1"))),
        frozen=("1.weight", "1.bias"),
        program=(Forward(), Backward()),
        inputs=Dense(width=3, requires_grad=False),
    )
    a = anatomy(case)
    shards, whole = shard_bytes(a), 4 * (4 * 3 + 4)

    def kinds(held: int, unsharded: tuple[str, ...]) -> list[str]:
        states = (UnitState(op=1, unsharded=unsharded),)
        seen = Subject(units=("0", "1"), unit_states=states, shard_bytes=held)
        found = judge(case, observed(case, seen, seen)).findings
        return [f.key for f in found if f.invariant == "shard_bytes"]

    assert kinds(shards, ()) == kinds(shards + whole, ("1",)) == []
    assert kinds(shards + whole + 4, ("1",)) == ["shard_bytes/leak/fsdp2:more"]
    assert kinds(shards - 4, ("1",)) == ["shard_bytes/mismatch/fsdp2:less"]
    assert kinds(shards + 2 * whole, ("0", "1")) == []  # told of by resharded_after_backward


def test_more_and_fewer_bytes_of_gradients() -> None:
    held = grad_bytes(ANATOMY, 0)
    assert keys(CASE, subject(grad_bytes=held + 4)) == ["grad_bytes/leak/fsdp2:more"]
    assert keys(CASE, subject(grad_bytes=held - 4)) == ["grad_bytes/mismatch/fsdp2:less"]


def test_fewer_gradients_are_right_where_some_parameter_may_have_none() -> None:
    frozen = msgspec.structs.replace(CASE, frozen=("bias",))
    assert keys(frozen, subject(grad_bytes=0), subject(1, grad_bytes=0)) == []


def tracked(peak: int, device: int = 0, shards: int = managed_bytes(ANATOMY)) -> list[str]:
    ranks = [
        subject(rank, states_taken=0, tracker_peak=peak, device_peak=device, tracker_shards=shards)
        for rank in range(2)
    ]
    return keys(TRACKED, *ranks)


MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize("part", [0.901, 1.0, 1.099])
def test_a_peak_within_a_tenth_of_the_devices_passes(part: float) -> None:
    assert tracked(int(part * GIB), GIB) == []


def test_a_peak_further_off_is_found() -> None:
    assert tracked(int(0.899 * GIB), GIB) == ["tracker_accuracy/mismatch/fsdp2:device-less"]
    assert tracked(int(1.101 * GIB), GIB) == ["tracker_accuracy/mismatch/fsdp2:device-more"]


def test_a_tiny_model_may_round_its_allocations() -> None:
    assert tracked(4096, 4608) == []


@pytest.mark.parametrize("sign", [-1, 1])
def test_what_attention_allocates_for_itself_is_not_the_trackers_error(sign: int) -> None:
    """Of a model without it, more than a MiB is."""
    kind = "more" if sign > 0 else "less"
    assert tracked(MIB * 5, MIB * 5 - sign * MIB) == []
    assert tracked(MIB * 5, MIB * 5 - sign * (MIB + 1)) == [
        f"tracker_accuracy/mismatch/fsdp2:device-{kind}"
    ]
    layer = EncoderLayer(heads=1, hidden=2)
    case = msgspec.structs.replace(
        TRACKED,
        model=Sequential(children=(Linear(out=3), layer)),
        inputs=Dense(width=3, length=2),
    )
    may = MIB + (MIB + 96 * 1024)
    shards = managed_bytes(anatomy(case))

    def found(off: int) -> list[str]:
        seen = [
            subject(
                rank,
                states_taken=0,
                tracker_peak=MIB * 5 + sign * off,
                device_peak=MIB * 5,
                tracker_shards=shards,
            )
            for rank in range(2)
        ]
        found = judge(case, observed(case, *seen)).findings
        return [f.key for f in found if f.invariant == "tracker_accuracy"]

    assert found(may) == []
    assert found(may + 1) == [f"tracker_accuracy/mismatch/fsdp2:device-{kind}"]


def test_without_a_device_the_peak_holds_what_must_be_there_at_once() -> None:
    moments, unit = 2 * min(grad_bytes(ANATOMY, rank) for rank in (0, 1)), 4 * 12
    least = SHARDS + max(moments, unit)
    assert tracked(least) == []
    assert tracked(least - 1) == ["tracker_accuracy/mismatch/fsdp2:least-less"]


def test_branches_that_no_forward_takes_have_no_moments() -> None:
    """AdamW made some for one of three: a tracker that saw 120 bytes had seen all there was."""
    branches = Switch(children=(Linear(out=2, bias=False),) * 3)
    ignored = Fsdp2Plan(units=(Fsdp2Unit(path="", ignored=("",)),))
    case = msgspec.structs.replace(
        TRACKED,
        model=branches,
        inputs=Dense(width=2),
        plan=ignored,
        optimizer=Optimizer(name="adamw"),
    )

    def found(peak: int) -> list[str]:
        seen = [subject(rank, states_taken=0, tracker_peak=peak) for rank in range(2)]
        return [
            f.key
            for f in judge(case, observed(case, *seen)).findings
            if f.invariant == "tracker_accuracy"
        ]

    parameters = 3 * 4 * 4
    assert found(parameters) == []
    assert found(parameters - 1) == ["tracker_accuracy/mismatch/fsdp2:least-less"]


def test_the_tracker_counts_all_shards_and_rounds_only_as_the_device_does() -> None:
    right = managed_bytes(ANATOMY)
    assert tracked(1000, 1000, shards=right + 2 * 512) == []
    assert tracked(1000, 1000, shards=right - 4) == ["tracker_accuracy/mismatch/fsdp2:shards-less"]
    assert tracked(1000, 1000, shards=right + 2 * 512 + 1) == [
        "tracker_accuracy/mismatch/fsdp2:shards-more"
    ]


def test_a_case_that_only_saves_checks_something() -> None:
    only = msgspec.structs.replace(CASE, program=(StateDict(),), optimizer=None)
    verdict = judge(only, observed(only, subject(grad_bytes=0), subject(1, grad_bytes=0)))
    assert verdict.status == "passed"
