"""The plain model under ``DistributedDataParallel``, where that can train it.

It documents what it cannot do: reentrant checkpointing together with unused or repeated
parameters, ``requires_grad`` changed after construction, several forwards before a backward, a
graph that differs between ranks.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fsdpfuzz.case import Anatomy, Forward, most_pending, reference_recomputes
from fsdpfuzz.case.modules.side_output import keeping
from fsdpfuzz.case.units import lies_on_cpu


def needs_averaging(a: Anatomy) -> bool:
    """Whether ``DistributedDataParallel`` documents that it cannot run this case."""
    case = a.case
    recomputes = reference_recomputes(a)
    return (
        # "DistributedDataParallel is not needed when a module doesn't have any parameter that
        # requires a gradient": its constructor raises.
        all(p.fqn in a.frozen for p in a.parameters)
        or any(c.reentrant for c in case.checkpoints)
        # The caller looks for the request at the root itself (steps/checkpointing.py, ``call``),
        # and would find DDP there.
        or (recomputes and any(not c.path for c in case.checkpoints if c.recomputes))
        # "You should never try to change your model's parameters after wrapping up your model".
        or any(op.changes_trained or op.converts for op in case.program)
        # A module called by itself goes past DDP's forward, which prepares its reducer
        # (``DistributedDataParallel._pre_forward``, ``_post_forward``).
        or any(
            isinstance(op, Forward) and (op.target or op.by_method or op.drop)
            for op in case.program
        )
        # The module is named as it lies in the model, not in DDP. And its reducer waits for one
        # backward a forward (``Reducer::prepare_for_backward``).
        or any(o.interrupts or o.starts_over or o.within or o.goes_back_again for o in case.program)
        or bool(a.optional)
        # It looks for what is unused from the output on (``find_unused_parameters``).
        or (bool(keeping(a)) and any(not p.used for p in a.parameters))
        # DDP averages what no unit manages, too; FSDP leaves that alone.
        or None in a.owners.values()
        # There the plain model forgets gradients before a backward, as a part of the averaging
        # (case/lowering.py, ``before_backward``), which is left out under DDP.
        or (a.fsdp1 and any(map(lies_on_cpu, a.options.values())))
        or most_pending(case) > 1
    )


def in_ddp(a: Anatomy, model: nn.Module, device: torch.device) -> nn.Module:
    """The model inside of ``DistributedDataParallel``, which does what FSDP does with gradients."""
    return DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        # Only where there are any: DDP then walks the graph of each forward, and warns if it need
        # not.
        find_unused_parameters=any(not p.used for p in a.parameters),
        **_NO_BUFFER_SYNC,
    )


_NO_BUFFER_SYNC: dict[str, Any] = {
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers": False
}
"""FSDP never synchronises buffers; DDP's option for the same has a new name since torch 2.13."""
