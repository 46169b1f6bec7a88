"""Whole parameters between iterations."""

from __future__ import annotations

from fsdpfuzz.case.operations import FullParams, Rebuild
from fsdpfuzz.case.units.precision import computed_in
from fsdpfuzz.strategies.operations.forward import left_whole
from fsdpfuzz.strategies.operations.program import Program


def draw(program: Program) -> None:
    """Read once or twice, in any gap; with fsdp1 some that are trained are written, too.

    More often behind a lone forward of fsdp1 in lower precision, which leaves what was not looked
    at. Offload is rare: on a CPU it is known to fail. Shrinks towards none, then towards reading.
    """
    d = program.d
    whole = left_whole(program)
    lower = d.a.fsdp1 and bool(whole) and any(computed_in(unit) for unit in d.case.plan.units)
    often = d.chance(50) if lower else d.chance(9, state_dict=20)
    if d.parting != "never" or not often or (d.a.split_ties and not d.a.fsdp1):
        return
    plans = [d.case.plan, *(op.plan for op in program.operations() if isinstance(op, Rebuild))]
    trained = [p.fqn for p in d.a.distinct if p.used and p.fqn not in d.a.frozen]
    for _ in range(d.between(1, 2)):
        # ``FlatParamHandle.to_cpu`` in fsdp/_flat_param.py copies nothing on a CPU, and then frees.
        writes, other = d.chance(50), d.chance(5 if d.a.fsdp1 else 30)
        chosen = [name for name, on in zip(trained, d.mask(len(trained)), strict=True) if on]
        # Only such units give gradients, and none on the CPU.
        original = d.a.fsdp1 and not any(unit.flat for plan in plans for unit in plan.units)
        asked = FullParams(
            written=tuple(chosen) if writes and d.a.fsdp1 else (),
            offload_to_cpu=other and d.a.fsdp1,
            grads=original and not other and d.chance(50),
            rank0_only=d.a.fsdp1 and not writes and d.chance(40),
            async_op=other and not d.a.fsdp1,
        )
        d.pick([*program.gaps, *whole * 3]).append(asked)
