"""Findings of every kind on one small case, for what is written about them."""

from __future__ import annotations

from fsdpfuzz.spec import (
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Sequential,
    StateDict,
    Step,
    Twin,
    ZeroGrad,
    check,
)
from fsdpfuzz.verdict import Finding, Symptom

ITERATION = (Forward(), Backward(), Step(), ZeroGrad())
FIRST = Fsdp1Plan(units=(Fsdp1Unit(path=""),))
SECOND = Fsdp2Plan(units=(Fsdp2Unit(path=""),))


def single_unit(api: str, **changes: object) -> CaseSpec:
    options: dict[str, object] = {
        "world_size": 2,
        "model": Sequential(children=(Linear(out=3), Linear(out=2))),
        "inputs": Dense(width=3),
        "plan": FIRST if api == "fsdp1" else SECOND,
        "program": ITERATION,
    }
    case = CaseSpec(**(options | changes))  # type: ignore[arg-type]
    check(case)
    return case


def finding(
    invariant: str, symptom: Symptom = "mismatch", where: str = "", message: str = "", op: int = -1
) -> Finding:
    text = message or "x=1.5, but should be 0.5 within 1e-05 [0.weight, rank 0, program[1]]"
    return Finding(
        invariant=invariant,
        symptom=symptom,
        where=where,
        message=text,
        observed="1.5",
        expected="0.5",
        op=op,
    )


CRASH = "RuntimeError: sizes [4] do not fit\n[case:backward[1] on rank 0; raised on ranks [0, 1]]"
SAVING = (StateDict(),)


def every_kind(api: str) -> dict[str, tuple[CaseSpec, Finding]]:
    """A single-unit finding of each invariant and symptom that ``api`` can have."""
    case = single_unit(api)
    saving = single_unit(api, program=SAVING)
    frozen = single_unit(api, frozen=("0.weight",))
    if api == "fsdp1":
        plan = Fsdp1Plan(units=(Fsdp1Unit(path="", use_orig_params=True),))
        frozen = single_unit(api, frozen=("0.weight",), plan=plan)
    plain = Twin(name="plain", checkpoints=(Checkpoint(path="0", kind="wrapper"),))
    twins = single_unit(api, twins=(plain,))
    kinds = {
        "loss": (case, finding("loss_parity", where=f"{api}:other", op=0)),
        "output": (case, finding("output_parity", where=f"{api}:other", op=0)),
        "grad": (case, finding("grad_parity", where=f"{api}:other", op=1)),
        "missing": (case, finding("grad_parity", where=f"{api}:observed-missing", op=1)),
        "param": (case, finding("param_parity", where=f"{api}:other", op=2)),
        "buffer": (case, finding("buffer_parity", where=f"{api}:other")),
        "frozen": (frozen, finding("frozen_untouched", where=f"{api}:changed")),
        "frozen-grad": (frozen, finding("frozen_untouched", where=f"{api}:grad")),
        "whole": (case, finding("resharded_after_backward", "leak", api, op=1)),
        "units": (case, finding("wrapped_as_planned", where=api)),
        "shards": (case, finding("shard_bytes", "leak", f"{api}:more")),
        "grads": (case, finding("grad_bytes", "leak", f"{api}:more")),
        "keys": (saving, finding("state_dict_keys", where=f"{api}:missing")),
        "values": (saving, finding("state_dict_values", where=f"{api}:other", op=0)),
        "round-trip": (saving, finding("state_dict_round_trip", where=f"{api}:other", op=0)),
        "crash": (case, finding("no_crash", "crash", f"{api}:RuntimeError@torch/x.py:f:t", CRASH)),
        "part": (
            case,
            finding("no_crash", "rank_divergence", f"{api}:RuntimeError@torch/x.py:f:t", CRASH),
        ),
        "hang": (case, finding("no_hang", "hang", api, "no answer [case:backward[1]]")),
        "death": (
            case,
            finding("no_rank_death", "rank_death", f"{api}:-9", "died [case:backward[1]]"),
        ),
        "twins-grad": (twins, finding("twins_agree", where=f"{api}:plain:grad", op=1)),
        "twins-loss": (twins, finding("twins_agree", where=f"{api}:plain:loss", op=0)),
        "twins-output": (twins, finding("twins_agree", where=f"{api}:plain:output", op=0)),
        "twins-param": (twins, finding("twins_agree", where=f"{api}:plain:param", op=2)),
        "offloads": (case, finding("offload_entered", where=f"{api}:less", op=0)),
    }
    if api == "fsdp1":
        detail = single_unit(api, debug_level="DETAIL")
        kinds |= {
            "reshards": (case, finding("reshard_count", where="fsdp1:less", op=1)),
            "warning": (detail, finding("order_warning", where="fsdp1:false", op=0)),
            "order": (detail, finding("order_error", where="fsdp1:silent", op=0)),
        }
    else:
        tracked = single_unit(api, probes=("mem_tracker",))
        text = (
            "the tracker's peak is 5 bytes, but should be 72, what must be there at once [rank 0]"
        )
        shards = "the tracker counts 5 bytes of sharded parameters, but should count 72 [rank 0]"
        device = "the tracker's peak is 5 bytes, but should be 72 within 10%, the device's [rank 0]"
        kinds |= {
            "tracker": (tracked, finding("tracker_accuracy", where="fsdp2:less", message=text)),
            "tracker-shards": (
                tracked,
                finding("tracker_accuracy", where="fsdp2:shards-less", message=shards),
            ),
            "tracker-device": (
                tracked,
                finding("tracker_accuracy", where="fsdp2:less", message=device),
            ),
        }
    return kinds
