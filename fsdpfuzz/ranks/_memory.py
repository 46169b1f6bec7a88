"""Memory of a training run: what ``FSDPMemTracker`` counts and what the device allocated.

The measured run is alone: no reference lies beside it, inputs are drawn once, and nothing
of a forward is kept but its loss, so that the tracker and the allocator see the same
tensors.
"""

from __future__ import annotations

import gc

import torch
from torch import Tensor
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker, _FSDPRefType

from fsdpfuzz.observations import Subject, UnitState
from fsdpfuzz.ranks._build import build
from fsdpfuzz.ranks._data import draw_inputs, loss_of
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._modules import call
from fsdpfuzz.ranks._program import make_optimizer, module_at
from fsdpfuzz.ranks._shard import Sharded
from fsdpfuzz.ranks._sharding import shard
from fsdpfuzz.spec import Backward, CaseSpec, Dense, Forward, Step, ZeroGrad

_SHARDED = _FSDPRefType.SHARDED_PARAM


def measure(case: CaseSpec, env: RankEnv) -> Subject:
    """Trains ``case`` under the tracker; raises whatever FSDP or the tracker raises."""
    before = _active_bytes(env.device)
    env.flight.stage("case:wrap")
    with env.device:
        model = build(case)
    sharded = shard(model, case.plan, case.checkpoints, env)
    del model
    held_out = {
        id(p.parameter) for p in sharded.pieces if p.fqn in case.held_out
    }  # a tied parameter is held out by its source's name, which fsdp2 keeps
    optimizer = make_optimizer(
        case.optimizer, [p for p in sharded.model.parameters() if id(p) not in held_out]
    )
    inputs = draw_inputs(case, env.rank, 0).to(env.device)
    if isinstance(case.inputs, Dense):
        inputs.requires_grad_(case.inputs.requires_grad)
    tracker = FSDPMemTracker(sharded.model, optimizer)
    tracker.track_inputs((inputs,))
    if env.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(env.device)
    states = []
    with tracker:
        states = _run(case, sharded, optimizer, inputs, tracker, env)
    peak = tracker.get_tracker_snapshot("peak")
    device_peak = 0
    if env.device.type == "cuda":
        torch.cuda.synchronize(env.device)
        device_peak = torch.cuda.memory_stats(env.device)["active_bytes.all.peak"] - before
    return Subject(
        units=sharded.units,
        unit_states=tuple(states),
        shard_bytes=sharded.held_bytes(),
        grad_bytes=sharded.grad_bytes(),
        tracker_peak=int(peak.get(env.device, {}).get("Total", 0)),
        tracker_shards=sum(int(held.get(_SHARDED, 0)) for held in peak.values()),
        device_peak=device_peak,
    )


def _run(
    case: CaseSpec,
    sharded: Sharded,
    optimizer: torch.optim.Optimizer | None,
    inputs: Tensor,
    tracker: FSDPMemTracker,
    env: RankEnv,
) -> list[UnitState]:
    """The program; the tracker's statistics by module start anew with each iteration."""
    states = []
    losses: list[Tensor] = []
    trained = False
    for i, op in enumerate(case.program):
        env.flight.stage(f"case:{op.__struct_config__.tag}[{i}]")
        match op:
            case Forward():
                if trained and not losses:
                    tracker.reset_mod_stats()
                torch.manual_seed(case.seed + i)
                losses.append(loss_of(case, call(module_at(sharded.model, op.target), inputs)))
            case Backward():
                total = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
                torch.autograd.backward(total)
                del total
                losses.clear()
                trained = True
                states.append(UnitState(op=i, unsharded=sharded.unsharded()))
            case Step() if optimizer is not None:
                optimizer.step()
            case ZeroGrad():
                (optimizer or sharded.model).zero_grad(set_to_none=op.set_to_none)
            case _:
                pass
    return states


def _active_bytes(device: torch.device) -> int:
    """Bytes in use on a CUDA device, its matrix library warmed up; 0 on a CPU."""
    gc.collect()
    if device.type != "cuda":
        return 0
    warm = torch.nn.Linear(768, 768, device=device)
    warm(torch.randn(1, 768, device=device)).sum().backward()
    del warm
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_accumulated_memory_stats(device)
    torch.cuda.reset_peak_memory_stats(device)
    return int(torch.cuda.memory_stats(device)["active_bytes.all.current"])
