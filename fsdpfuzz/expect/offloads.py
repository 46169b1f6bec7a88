"""How often ``save_on_cpu`` is entered: once for each call of an offloaded module."""

from __future__ import annotations

from fsdpfuzz.case import Anatomy, Forward


def offload_entries(a: Anatomy, rank: int) -> tuple[int, ...]:
    """For each forward the number of calls of modules whose activations go to the CPU."""
    wrapped = {c.path for c in a.case.checkpoints if c.kind == "offload"}
    called = {c.path for c in a.case.checkpoints if c.kind == "function_offload"}
    if not wrapped and not called:
        return (0,) * sum(isinstance(op, Forward) for op in a.case.program)
    return tuple(
        sum(
            call.path in wrapped or (call.asked and call.path in called)
            for call in a.calls(op, now)
        )
        for _, op, now in a.situations(rank)
        if isinstance(op, Forward)
    )
