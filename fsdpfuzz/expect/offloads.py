"""How often activation offload and checkpointing are entered: once for each call of a module."""

from __future__ import annotations

from collections.abc import Sequence

from fsdpfuzz.case import Anatomy, Checkpoint, Forward
from fsdpfuzz.case.checkpoints import OFFLOADS


def offload_entries(a: Anatomy, rank: int) -> tuple[int, ...]:
    """For each forward the number of calls of modules whose activations go to the CPU."""
    return _entries(a, rank, [c for c in a.case.checkpoints if c.kind in OFFLOADS])


def checkpoint_entries(a: Anatomy, rank: int, *, reentrant: bool) -> tuple[int, ...]:
    """For each forward the number of calls of modules that are to be recomputed in that way."""
    chosen = [c for c in a.case.checkpoints if c.recomputes and c.reentrant == reentrant]
    return _entries(a, rank, chosen)


def _entries(a: Anatomy, rank: int, chosen: Sequence[Checkpoint]) -> tuple[int, ...]:
    """Calls of modules that enter by themselves, or because their caller looks for it."""
    forwards = ((i, op, now) for i, op, now in a.situations(rank) if isinstance(op, Forward))
    if not chosen:
        return (0,) * sum(1 for _ in forwards)
    return tuple(
        sum(
            call.asked or not checkpoint.by_caller(a.at(i))
            for call in a.calls(op, now)
            for checkpoint in chosen
            if checkpoint.path == call.path
        )
        for i, op, now in forwards
    )
