"""For each invariant a case, an observation of it that is clean, and one with a fault."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Flip,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Precision,
    StateDict,
    Step,
    Switch,
    Variant,
    anatomy,
)
from fsdpfuzz.case.grad_scaler import GradScaler
from fsdpfuzz.case.operations import Clip, FullParams, OptimState, Transfer, UpdateScale
from fsdpfuzz.expect import grad_bytes, managed_bytes, shard_bytes, waiting_bytes
from fsdpfuzz.invariants import ORDER_ERROR, ORDER_WARNING
from fsdpfuzz.observations import (
    Comparison,
    Death,
    Hang,
    Observation,
    Raised,
    Subject,
    Unfreed,
    UnitState,
    WrongEntry,
)
from tests.unit.invariants.observed import (
    CASE,
    REFUSAL,
    REFUSED,
    comparison,
    observed,
    on_one_rank,
    raised,
    subject,
)


@dataclass(frozen=True)
class Fault:
    """What must be found, and what must not."""

    case: CaseSpec
    clean: Observation
    fault: Observation
    key: str
    """Of the only finding of the invariant."""


def _off(key: str, **changes: object) -> Fault:
    """A comparison that is fine, and one that is not."""
    quantity = {"quantity": changes["quantity"]} if "quantity" in changes else {}
    exact = {"exact": True, "error": 0.0} if changes.get("exact") else {}
    fine = subject(comparisons=(comparison(**quantity | exact),))
    wrong = subject(comparisons=(comparison(**{"error": 0.5} | changes),))
    return Fault(CASE, observed(fine), observed(wrong), key)


def _subject(key: str, case: CaseSpec, clean: Subject, fault: Subject) -> Fault:
    return Fault(case, observed(clean, case=case), observed(fault, case=case), key)


_SWITCHED = CaseSpec(
    world_size=2,
    model=Switch(children=(Linear(out=2), Linear(out=2))),
    inputs=Dense(width=2),
    plan=Fsdp1Plan(
        units=(Fsdp1Unit(path="branches.0"), Fsdp1Unit(path="branches.1"), Fsdp1Unit(path=""))
    ),
    program=(Forward(), Backward(), Flip(path="", ranks=(1,)), Forward(), Backward()),
    debug_level="DETAIL",
)
"""Unit "" has no parameters of its own. Rank 1 leaves its own order at operation 3."""
_PARTED = msgspec.structs.replace(
    _SWITCHED, program=(Flip(path="", ranks=(1,)), Forward(), Backward())
)
"""Ranks differ in their first order, at operation 1."""
_REFUSED = raised(message=f"{ORDER_ERROR}: ...", stage="case:forward[1]")
_WARNING = f"{ORDER_WARNING} 1. Collectives are unchecked ..."


def _warns(texts: tuple[str, ...]) -> Subject:
    return Subject(units=_units(_SWITCHED), warnings=texts, warning_ops=(3,) * len(texts))


def _units(case: CaseSpec) -> tuple[str, ...]:
    return anatomy(case).units


_CLEAN1 = observed(Subject(units=_units(_SWITCHED)), case=_SWITCHED)
_OFFLOADED = msgspec.structs.replace(CASE, checkpoints=(Checkpoint(path="0", kind="offload"),))
_RECOMPUTED = msgspec.structs.replace(CASE, checkpoints=(Checkpoint(path="0"),))
_REENTRANT = msgspec.structs.replace(
    CASE, checkpoints=(Checkpoint(path="0", reentrant=True, kind="function"),)
)
_FIRST = msgspec.structs.replace(
    CASE, plan=Fsdp1Plan(units=(Fsdp1Unit(path="0"), Fsdp1Unit(path="")))
)
_VARIED = msgspec.structs.replace(CASE, twins=(Variant(name="plain", checkpoints=()),))
_SAVING = msgspec.structs.replace(CASE, program=(*CASE.program, StateDict()))
_TRACKED = msgspec.structs.replace(
    CASE, plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)), probes=("mem_tracker",)
)
_CLIPPED = msgspec.structs.replace(
    CASE, program=(Forward(), Backward(), Clip(max_norm=1.0), Step())
)
_NORM = comparison(quantity="result", name="total_norm", op=2)
_READ = msgspec.structs.replace(CASE, program=(*CASE.program, FullParams()))
_SCALED = msgspec.structs.replace(
    CASE, program=(*CASE.program, UpdateScale()), grad_scaler=GradScaler()
)
_TRANSFERRED = msgspec.structs.replace(CASE, program=(*CASE.program, Transfer()))
_KEPT = msgspec.structs.replace(CASE, program=(*CASE.program, OptimState()))
_WAITING = msgspec.structs.replace(
    CASE, program=(Forward(sync=False), Backward(), Forward(), Backward(), Step())
)
_LOWERED = msgspec.structs.replace(
    CASE,
    plan=Fsdp2Plan(
        units=(
            Fsdp2Unit(path="0", precision=Precision(param="bfloat16")),
            Fsdp2Unit(path="", precision=Precision(param="bfloat16", output="float32")),
        )
    ),
    program=(Forward(), Backward(), Forward(), Backward(), Step()),
)
_A, _T = anatomy(CASE), anatomy(_TRACKED)
_AT_BACKWARD = (UnitState(op=1, unsharded=()),)


def _of_results(case: CaseSpec, name: str, invariant: str = "") -> Fault:
    """What the last operation gives of a parameter is off."""
    given = comparison(quantity="result", name=name, op=len(case.program) - 1)
    wrong = msgspec.structs.replace(given, error=1e-3)
    key = f"{invariant or name.partition('[')[0]}/mismatch/fsdp2"
    return _subject(key, case, subject(comparisons=(given,)), subject(comparisons=(wrong,)))


def _saved(**changes: object) -> Subject:
    return subject(states_taken=1, **changes)


def _entry(quantity: str, error: float) -> Comparison:
    return comparison(quantity=quantity, op=3, exact=True, error=error)


def _held(shards: int = shard_bytes(_A), grads: int = grad_bytes(_A, 1)) -> Observation:
    """Rank 0 holds what it should, rank 1 what is given."""
    right, mine = (
        subject(shard_bytes=held, grad_bytes=reduced, unit_states=_AT_BACKWARD)
        for held, reduced in ((shard_bytes(_A), grad_bytes(_A, 0)), (shards, grads))
    )
    return on_one_rank(observed(right), mine)


_GATHERED = ("all_gather float32 4", "all_gather float32 8")
"""The root has two rows on two ranks, unit "0" has three."""
_REDUCED = ("all_gather float32 8", "reduce_scatter float32 8", "reduce_scatter float32 16")


def _issuing(*operations: tuple[str, ...]) -> Subject:
    return subject(issued=(*operations, ()))


def _tracking(peak: int) -> Subject:
    return Subject(
        units=("",), tracker_peak=peak, device_peak=1 << 30, tracker_shards=managed_bytes(_T)
    )


def _variant(error: float) -> Observation:
    off = comparison(quantity="param", op=2, error=error, baseline=0.0)
    return observed(subject(), subject(name="plain", against_case=(off,)), case=_VARIED)


def _refuses(*errors: Raised | None, case: CaseSpec = CASE) -> Observation:
    return observed(errors=errors, case=case)


_REFUSAL = raised(type="ValueError", documented=True, stage="case:wrap", message=REFUSAL)
_WHERE = "torch/distributed/fsdp/_flat_param.py:unshard"
_PLACE = f"{_WHERE}:size # does not match _"
_SILENT = msgspec.structs.replace(_REFUSED, message="something else")


def _waits(part: int) -> Subject:
    due = waiting_bytes(anatomy(_WAITING), 1, 0)
    assert due
    return subject(unit_states=(UnitState(op=1, unsharded=(), waiting=due // part),))


def _puts_out(*dtypes: str) -> Subject:
    return subject(output_dtypes=dtypes)


FAULTS: dict[str, Fault] = {
    "output_dtype": _subject(
        "output_dtype/mismatch/fsdp2",
        _LOWERED,
        _puts_out("float32", "float32"),
        _puts_out("float32", "bfloat16"),
    ),
    "waiting_gradients": _subject(
        "waiting_gradients/mismatch/fsdp2:less", _WAITING, _waits(1), _waits(2)
    ),
    "order_error": Fault(
        _PARTED,
        observed(errors=(_REFUSED, _REFUSED), case=_PARTED),
        observed(errors=(_REFUSED, _SILENT), case=_PARTED),
        "order_error/rank_divergence/fsdp1:some-ranks",
    ),
    "order_warning": Fault(
        _SWITCHED,
        on_one_rank(_CLEAN1, _warns((_WARNING,))),
        on_one_rank(_CLEAN1, _warns((_WARNING, _WARNING))),
        "order_warning/mismatch/fsdp1:repeated",
    ),
    "no_hang": Fault(
        CASE,
        observed(),
        observed(hang=Hang(ranks=(0, 1), deadline=3.0, stages=("case:backward[1]", ""))),
        "no_hang/hang/fsdp2:backward",
    ),
    "no_rank_death": Fault(
        CASE,
        observed(),
        observed(deaths=(Death(rank=1, exitcode=-6, stage="case:forward[0]"),)),
        "no_rank_death/rank_death/fsdp2:forward:-6",
    ),
    "no_crash": Fault(
        CASE,
        observed(),
        _refuses(raised(), raised()),
        f"no_crash/crash/fsdp2:RuntimeError@{_PLACE}",
    ),
    "ranks_agree": Fault(
        CASE,
        observed(),
        _refuses(None, raised()),
        f"ranks_agree/rank_divergence/fsdp2:RuntimeError@{_PLACE}",
    ),
    "equal_rejection": Fault(
        REFUSED,
        _refuses(_REFUSAL, _REFUSAL, case=REFUSED),
        _refuses(_REFUSAL, None, case=REFUSED),
        f"equal_rejection/rank_divergence/fsdp2:ValueError@{_WHERE}:{REFUSAL}",
    ),
    "clip_norm": _subject(
        "clip_norm/mismatch/fsdp2",
        _CLIPPED,
        subject(comparisons=(_NORM,)),
        subject(comparisons=(msgspec.structs.replace(_NORM, error=1e-3),)),
    ),
    "grad_scale": _of_results(_SCALED, "scale[scaler].scale", "grad_scale"),
    "full_params": _of_results(_READ, "full_params[0.weight]"),
    "transferred": _of_results(_TRANSFERRED, "transferred[0.weight]"),
    "optim_state": _of_results(_KEPT, "optim_state[0.weight].momentum_buffer"),
    "loss_parity": _off("loss_parity/mismatch/fsdp2", quantity="loss", op=0),
    "output_parity": _off("output_parity/mismatch/fsdp2", quantity="output", op=0),
    "grad_parity": _off("grad_parity/mismatch/fsdp2"),
    "param_parity": _off("param_parity/mismatch/fsdp2", quantity="param", error=1e-3),
    "buffer_parity": _off(
        "buffer_parity/mismatch/fsdp2", quantity="buffer", exact=True, error=1e-12
    ),
    "twins_agree": Fault(_VARIED, _variant(0.0), _variant(1e-3), "twins_agree/mismatch/fsdp2"),
    "frozen_untouched": _subject(
        "frozen_untouched/mismatch/fsdp2:changed",
        CASE,
        subject(),
        subject(frozen_changed=("0.bias",)),
    ),
    "resharded_after_backward": _subject(
        "resharded_after_backward/leak/fsdp2",
        CASE,
        subject(unit_states=_AT_BACKWARD),
        subject(unit_states=(UnitState(op=1, unsharded=("0",)),)),
    ),
    "wrapped_as_planned": _subject(
        "wrapped_as_planned/mismatch/fsdp2:less", CASE, subject(), subject(units=("",))
    ),
    "offload_entered": _subject(
        "offload_entered/mismatch/fsdp2:more",
        _OFFLOADED,
        subject(saved_on_cpu=(1,)),
        subject(saved_on_cpu=(2,)),
    ),
    "checkpoint_entered": _subject(
        "checkpoint_entered/mismatch/fsdp2:less",
        _RECOMPUTED,
        subject(checkpointed=(1,)),
        subject(checkpointed=(0,)),
    ),
    "reentrant_entered": _subject(
        "reentrant_entered/mismatch/fsdp2:less",
        _REENTRANT,
        subject(reentrant=(1,)),
        subject(reentrant=(0,)),
    ),
    "reshard_count": _subject(
        "reshard_count/mismatch/fsdp1:less",
        _FIRST,
        subject(backward_reshards=({"": 1, "0": 1},)),
        subject(backward_reshards=({"": 1},)),
    ),
    "state_dict_keys": _subject(
        "state_dict_keys/mismatch/fsdp2:missing",
        _SAVING,
        _saved(),
        _saved(wrong_entries=(WrongEntry(op=3, key="0.bias", kind="missing"),)),
    ),
    "state_dict_values": _subject(
        "state_dict_values/mismatch/fsdp2",
        _SAVING,
        _saved(comparisons=(_entry("state_dict", 0.0),)),
        _saved(comparisons=(_entry("state_dict", 1e-9),)),
    ),
    "state_dict_round_trip": _subject(
        "state_dict_round_trip/mismatch/fsdp2",
        _SAVING,
        _saved(comparisons=(_entry("reloaded", 0.0),)),
        _saved(comparisons=(_entry("reloaded", 1e-9),)),
    ),
    "shard_bytes": Fault(
        CASE, _held(), _held(shards=shard_bytes(_A) + 4), "shard_bytes/leak/fsdp2:more"
    ),
    "grad_bytes": Fault(
        CASE, _held(), _held(grads=grad_bytes(_A, 1) + 4), "grad_bytes/leak/fsdp2:more"
    ),
    "freed_when_sharded": _subject(
        "freed_when_sharded/leak/fsdp2",
        CASE,
        subject(),
        subject(unfreed=(Unfreed(op=0, units=("0",)),)),
    ),
    "collectives": _subject(
        "collectives/mismatch/fsdp2:reduce-scatter-other",
        CASE,
        _issuing(_GATHERED, _REDUCED),
        _issuing(_GATHERED, (*_REDUCED[:2], _REDUCED[2].replace("float32", "float16"))),
    ),
    "gathered_in_turn": _subject(
        "gathered_in_turn/mismatch/fsdp2:swapped",
        CASE,
        _issuing(_GATHERED, _REDUCED),
        _issuing(_GATHERED[::-1], _REDUCED),
    ),
    "tracker_accuracy": _subject(
        "tracker_accuracy/mismatch/fsdp2:device-more",
        _TRACKED,
        _tracking(1 << 30),
        _tracking(5 << 28),
    ),
    "tracker_ends": _subject(
        "tracker_ends/leak/fsdp2:pre_backward",
        _TRACKED,
        _tracking(1 << 30),
        msgspec.structs.replace(_tracking(1 << 30), tracker_left=("pre_backward of ''",)),
    ),
}
