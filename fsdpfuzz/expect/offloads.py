"""How often activation offload and checkpointing are entered: once for each call of a module."""

from __future__ import annotations

from collections.abc import Collection

from fsdpfuzz.case import Anatomy, Forward


def offload_entries(a: Anatomy, rank: int) -> tuple[int, ...]:
    """For each forward the number of calls of modules whose activations go to the CPU."""
    wrapped = {c.path for c in a.case.checkpoints if c.kind == "offload"}
    called = {c.path for c in a.case.checkpoints if c.kind == "function_offload"}
    return _entries(a, rank, wrapped, called)


def checkpoint_entries(a: Anatomy, rank: int, *, reentrant: bool) -> tuple[int, ...]:
    """For each forward the number of calls of modules that are to be recomputed in that way."""
    chosen = [c for c in a.case.checkpoints if c.recomputes and c.reentrant == reentrant]
    called = {c.path for c in chosen if c.by_caller(a)}
    return _entries(a, rank, {c.path for c in chosen} - called, called)


def _entries(
    a: Anatomy, rank: int, always: Collection[str], asked: Collection[str]
) -> tuple[int, ...]:
    """Calls of modules that enter by themselves, or because their caller looks for it."""
    if not always and not asked:
        return (0,) * sum(isinstance(op, Forward) for op in a.case.program)
    return tuple(
        sum(call.path in always or (call.asked and call.path in asked) for call in a.calls(op, now))
        for _, op, now in a.situations(rank)
        if isinstance(op, Forward)
    )
