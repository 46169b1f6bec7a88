"""How often ``save_on_cpu`` is entered: once for each call of an offloaded module."""

from __future__ import annotations

from fsdpfuzz.spec._case import CaseSpec
from fsdpfuzz.spec._flow import calls, situations
from fsdpfuzz.spec._program import Forward


def offload_entries(case: CaseSpec, rank: int) -> tuple[int, ...]:
    """For each forward the number of calls of modules whose activations go to the CPU."""
    wrapped = {c.path for c in case.checkpoints if c.kind == "offload"}
    called = {c.path for c in case.checkpoints if c.kind == "function_offload"}
    if not wrapped and not called:
        return (0,) * sum(isinstance(op, Forward) for op in case.program)
    return tuple(
        sum(
            call.path in wrapped or (call.asked and call.path in called)
            for call in calls(case, op, now)
        )
        for _, op, now in situations(case, rank)
        if isinstance(op, Forward)
    )
