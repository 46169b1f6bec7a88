"""Findings of every kind on one small case, for what is written about them."""

from __future__ import annotations

from typing import Any

import msgspec

from fsdpfuzz.case import (
    Backward,
    Buffered,
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
    Variant,
    ZeroGrad,
    check,
)
from fsdpfuzz.case.operations import Clip, FullParams, OptimState
from fsdpfuzz.verdict import Failure, Finding, Symptom

ITERATION = (Forward(), Backward(), Step(), ZeroGrad())
FIRST = Fsdp1Plan(units=(Fsdp1Unit(path=""),))
SECOND = Fsdp2Plan(units=(Fsdp2Unit(path=""),))


def single_unit(api: str, **changes: object) -> CaseSpec:
    """Two layers in one unit, trained once."""
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
    invariant: str, symptom: Symptom = "mismatch", api: str = "fsdp2", **fields: Any
) -> Finding:
    """A finding on `single_unit`, at the first operation that it may show at."""
    values: dict[str, Any] = {
        "ranks": (0,),
        "world_size": 2,
        "observed": "1.5",
        "expected": "0.5",
        "name": "0.weight",
        "quantity": "grad",
        "allowed": 1e-5,
    }
    return Finding(invariant=invariant, symptom=symptom, api=api, **values | fields)


def counted(invariant: str, kind: str, symptom: Symptom = "mismatch", **fields: Any) -> Finding:
    """A finding about a number, or about names."""
    plain: dict[str, Any] = {"allowed": None, "name": "", "unit": "", "kind": kind}
    return finding(invariant, symptom, **plain | fields)


CRASH = Failure(
    type="RuntimeError",
    text="sizes [4] do not fit 'weight' in the storage",
    place="torch/distributed/fsdp/_x.py:unshard",
    stage="case:backward[1]",
)
DEATH = Failure(stage="case:backward[1]", exitcode=-9, output="last words")
SAVING = (StateDict(),)
CLIPPING = (Forward(), Backward(), Clip(max_norm=0.1, norm_type=1), Step())
ASKED = Variant(name="asked", checkpoints=(Checkpoint(path="0", kind="composable"),))
PLAIN = Variant(name="plain", checkpoints=(Checkpoint(path="0", kind="wrapper"),))


def every_kind(api: str) -> dict[str, tuple[CaseSpec, Finding]]:
    """A single-unit finding of each invariant and symptom that ``api`` can have."""
    case = single_unit(api)
    saving = single_unit(api, program=SAVING)
    frozen = single_unit(api, frozen=("0.weight",))
    if api == "fsdp1":
        plan = Fsdp1Plan(units=(Fsdp1Unit(path="", use_orig_params=True),))
        frozen = single_unit(api, frozen=("0.weight",), plan=plan)
    varied = single_unit(api, twins=(PLAIN,))
    clipping = single_unit(api, program=CLIPPING)
    at_clip: dict[str, Any] = {"op": 2, "operation": "clip"}
    norm: dict[str, Any] = {**at_clip, "quantity": "result", "name": "total_norm"}
    reading = single_unit(api, program=(FullParams(),))
    read: dict[str, Any] = {"op": 0, "operation": "full_params", "quantity": "result"}
    read["name"] = "full_params[0.weight]"
    training = (Forward(), Backward(), Step())
    keeping = single_unit(api, program=(*training, OptimState()))
    held: dict[str, Any] = {"op": 3, "operation": "optim_state", "quantity": "result"}
    held["name"] = "optim_state[0.weight].momentum_buffer"
    saved: dict[str, Any] = {"op": 0, "operation": "state_dict"}
    ended: dict[str, Any] = {"op": 1, "operation": "backward", "name": "", "allowed": None}
    kinds = {
        "loss": (case, finding("loss_parity", name="loss[0]", quantity="loss", op=0)),
        "output": (case, finding("output_parity", name="output[0]", quantity="output", op=0)),
        "grad": (case, finding("grad_parity", op=1, operation="backward", baseline=1e-8)),
        "clipped": (clipping, finding("grad_parity", **at_clip)),
        "norm": (clipping, finding("clip_norm", **norm)),
        "variant-norm": (
            single_unit(api, program=CLIPPING, twins=(PLAIN,)),
            finding("twins_agree", variant="plain", **norm),
        ),
        "optim": (keeping, finding("optim_state", **held)),
        "unsaved": (keeping, finding("optim_state", detail="observed-missing", **held)),
        "read": (reading, finding("full_params", **read)),
        "unread": (reading, finding("full_params", detail="observed-missing", **read)),
        "variant-read": (
            single_unit(api, program=(FullParams(),), twins=(ASKED,)),
            finding("twins_agree", variant="asked", **read),
        ),
        "missing": (case, finding("grad_parity", detail="observed-missing", op=1, observed="0")),
        "param": (case, finding("param_parity", quantity="param", op=2)),
        "buffer": (
            single_unit(api, model=BUFFERED),
            finding("buffer_parity", name="1.scale", quantity="buffer", allowed=0.0),
        ),
        "frozen": (frozen, counted("frozen_untouched", "changed", name="0.weight")),
        "frozen-grad": (frozen, counted("frozen_untouched", "has-a-gradient", name="0.weight")),
        "whole": (case, counted("resharded_after_backward", "", "leak", op=1)),
        "units": (case, counted("wrapped_as_planned", "", unit=None)),
        "shards": (case, counted("shard_bytes", "more", "leak")),
        "grads": (case, counted("grad_bytes", "more", "leak")),
        "keys": (saving, counted("state_dict_keys", "missing", name="0.weight", **saved)),
        "values": (saving, finding("state_dict_values", quantity="state_dict", **saved)),
        "round-trip": (saving, finding("state_dict_round_trip", quantity="reloaded", **saved)),
        "crash": (case, finding("no_crash", "crash", kind=KIND, failure=CRASH, **ended)),
        "part": (
            case,
            finding("ranks_agree", "rank_divergence", kind=KIND, failure=CRASH, **ended),
        ),
        "hang": (case, finding("no_hang", "hang", kind="backward", **ended)),
        "death": (case, finding("no_rank_death", "rank_death", kind=":-9", failure=DEATH, **ended)),
        "offloads": (case, counted("offload_entered", "less", op=0, operation="forward")),
        "checkpoints": (case, counted("checkpoint_entered", "less", op=0, operation="forward")),
        "reentrant": (case, counted("reentrant_entered", "less", op=0, operation="forward")),
    }
    gather = "all_gather float32 10"
    told: dict[str, Any] = {"name": gather, "op": 0, "operation": "forward", "observed": "2"}
    ahead = {"op": 1, "operation": "backward", "expected": "before reduce_scatter float32 20"}
    for bounds in ("1", "0 to 1", "at least 3"):
        found = counted("collectives", "all-gather-more", expected=bounds, **told)
        kinds[f"collectives-{bounds}"] = (case, found)
    after = {"expected": "before all_gather float32 20"}
    kinds["swapped"] = (case, counted("gathered_in_turn", "swapped", **told | after))
    kinds["late"] = (case, counted("gathered_in_turn", "late", **told | ahead))
    for quantity, op in (("loss", 0), ("output", 0), ("grad", 1), ("param", 2)):
        name = "0.weight" if op else f"{quantity}[0]"
        found = finding("twins_agree", variant="plain", quantity=quantity, op=op, name=name)
        kinds[f"variant-{quantity}"] = (varied, found)
    if api == "fsdp1":
        detail = single_unit(api, debug_level="DETAIL")
        kinds |= {
            "optim-own": (
                single_unit(api, program=(*training, OptimState(own=True))),
                finding("optim_state", **held),
            ),
            "reshards": (case, counted("reshard_count", "less", op=1, operation="backward")),
            "warning": (detail, counted("order_warning", "false", op=0, operation="forward")),
            "order": (detail, counted("order_error", "silent", op=0, operation="forward")),
        }
    else:
        tracked = single_unit(api, probes=("mem_tracker",))
        kinds |= {
            f"tracker-{kind}": (tracked, counted("tracker_accuracy", f"{kind}-less"))
            for kind in ("least", "shards", "device", "whole")
        }
        kinds["tracker-left"] = (tracked, counted("tracker_ends", "hook", "leak"))
    return {name: (at, _of(api, found)) for name, (at, found) in kinds.items()}


KIND = "RuntimeError@torch/distributed/fsdp/_x.py:unshard:sizes [#] do not fit _ in the storage"
BUFFERED = Sequential(children=(Linear(out=3), Buffered()))


def _of(api: str, found: Finding) -> Finding:
    return msgspec.structs.replace(found, api=api)
