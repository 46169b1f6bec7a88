"""Memory of a training run: what ``FSDPMemTracker`` counts and what the device allocated.

The measured run is alone: no reference lies beside it, and nothing of a forward is kept but
what the recipe's own variables hold, so that the tracker and the allocator see the same tensors.
"""

from __future__ import annotations

import gc

import torch

from fsdpfuzz.case import Anatomy, lower
from fsdpfuzz.observations import Subject, UnitState
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._execute import Execution, Variables
from fsdpfuzz.ranks._sharded import Sharded
from fsdpfuzz.steps import tracking


class _Units:
    """A watcher that looks whether units are sharded again."""

    def __init__(self, a: Anatomy) -> None:
        self.states: list[UnitState] = []
        self.sharded: Sharded | None = None
        self._a = a

    def before(self, op: int, name: str) -> None:
        """Nothing to do."""

    def assigned(self, name: str, variables: Variables) -> bool:
        """Notes what FSDP made."""
        # The recipe names the parameters right after it has wrapped the model.
        if name == "named":
            self.sharded = Sharded(self._a, variables["model"], variables["named"])
        return True

    def after(self, op: int, name: str, variables: Variables) -> None:
        """After each backward."""
        gives = self._a.case.program[op].gives_gradients
        # Else there was nothing to go back through, and the root is as forward left it.
        if gives and self.sharded is not None and variables["loss"].requires_grad:
            self.states.append(UnitState(op=op, unsharded=self.sharded.unsharded()))


def measure(a: Anatomy, env: RankEnv) -> Subject:
    """Trains a case under the tracker; raises whatever FSDP or the tracker raises."""
    # What the case before left in circles would be counted with this one.
    gc.collect()
    cuda = env.device.type == "cuda"
    # Before anything is built: what earlier cases have left is none of this one's.
    before = tracking.allocated(env.device) if cuda else 0
    watcher = _Units(a)
    variables = Execution(
        recipe=lower(a), env=env, role="fsdp", dtype=torch.float32, label="case", watcher=watcher
    ).run()
    tracker, sharded = variables["tracker"], watcher.sharded
    if sharded is None:
        return Subject()
    return Subject(
        units=sharded.units,
        unit_states=tuple(watcher.states),
        shard_bytes=sharded.held_bytes(),
        grad_bytes=sharded.grad_bytes(),
        tracker_peak=tracking.peak(tracker, env.device),
        tracker_shards=tracking.shards_at_peak(tracker),
        tracker_unsharded=tracking.unsharded_now(tracker),
        tracker_left=tuple(tracking.left(variables["model"])),
        device_peak=tracking.used_at_peak(env.device, before) if cuda else 0,
    )
