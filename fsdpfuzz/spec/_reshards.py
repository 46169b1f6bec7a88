"""Which units fsdp1 must reshard in a backward by a hook of their own.

A unit that requires grad has the hook on its flat parameter, and it runs when backward
reaches any of the unit's parameters. A frozen unit has it on the inputs of its first call
that require grad, if there are any. All other units are resharded at the end of backward,
which is seen by their state and not counted.
"""

from __future__ import annotations

from fsdpfuzz.spec._case import CaseSpec
from fsdpfuzz.spec._contract import split_ties
from fsdpfuzz.spec._flow import Situation, calls, situations
from fsdpfuzz.spec._program import Backward, Forward
from fsdpfuzz.spec._tree import case_places
from fsdpfuzz.spec._units import unit_of


def backward_reshards(case: CaseSpec, rank: int) -> tuple[frozenset[str], ...] | None:
    """For each backward the units that reshard once, by their own hook; no other does.

    None where nothing is promised: for fsdp2, whose groups reshard at the end of backward at
    the latest; under reentrant checkpointing, where the hooks belong to the inner backwards;
    where a forward that no backward follows has left hooks behind; for calls of anything but
    the root; for a parameter in two units.
    """
    forwards = [op for op in case.program if isinstance(op, Forward)]
    if case.api != "fsdp1" or any(op.drop or op.target for op in forwards) or split_ties(case):
        return None
    if any(checkpoint.reentrant for checkpoint in case.checkpoints):
        return None
    demanded: list[frozenset[str]] = []
    hooked: dict[str, bool] = {}
    for _, op, now in situations(case, rank):
        if isinstance(op, Forward) and op.grad:
            _call(case, op, now, hooked)
        elif isinstance(op, Backward):
            demanded.append(frozenset(path for path, reached in hooked.items() if reached))
            hooked.clear()
    return tuple(demanded)


def _call(case: CaseSpec, op: Forward, now: Situation, hooked: dict[str, bool]) -> None:
    """Notes which units get a hook that backward will reach."""
    held = {place.path: [p.fqn for p in place.parameters if p.used] for place in case_places(case)}
    trained = _trained_units(case, now)
    for call in calls(case, op, now):
        if not call.grad:
            continue
        for fqn in held.get(call.path, ()):
            owner = now.owners[fqn]
            if owner is not None and trained[owner]:
                hooked[owner] = True
        if trained.get(call.path) is False:
            hooked.setdefault(call.path, call.input_grad)


def _trained_units(case: CaseSpec, now: Situation) -> dict[str, bool]:
    """For each unit with parameters, whether its flat parameter requires grad."""
    trained = dict(now.flat)
    for fqn, owner in now.owners.items():
        if owner is not None and getattr(unit_of(case.plan, owner), "use_orig_params", False):
            trained[owner] = trained.get(owner, False) or now.trained[fqn]
    return trained
