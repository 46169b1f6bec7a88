"""Which units are sharded after a backward, and which fsdp1 must reshard by a hook of their own.

A unit that requires grad has the hook on its flat parameter, and it runs when backward
reaches any of the unit's parameters. A frozen unit has it on the inputs of its first call
that require grad, if there are any. All other units are resharded at the end of backward,
which is seen by their state and not counted.
"""

from __future__ import annotations

from fsdpfuzz.case import (
    Anatomy,
    Forward,
    Situation,
    kept_whole,
)
from fsdpfuzz.case.lacking import unreached_roots
from fsdpfuzz.case.micro_batches import kept_whole_after


def backward_reshards(a: Anatomy, rank: int) -> tuple[frozenset[str], ...] | None:
    """For each backward the units that reshard once, by their own hook; no other does.

    None where nothing is promised: for fsdp2, whose groups reshard at the end of backward at
    the latest; under reentrant checkpointing, where the hooks belong to the inner backwards;
    where a forward that no backward follows, or that an exception ends, has left hooks behind;
    for calls of anything but the root; for several backwards in a row; for a parameter in two
    units; for an imported model, of which nobody knows what it computes.
    """
    forwards = [op for op in a.case.program if isinstance(op, Forward)]
    if not a.fsdp1 or any(op.drop or op.target for op in forwards) or a.split_ties:
        return None
    if any(op.interrupts or op.goes_back_again for op in a.case.program):
        return None
    if a.imported is not None or any(c.reentrant for c in a.case.checkpoints):
        return None
    demanded: list[frozenset[str]] = []
    hooked: dict[str, bool] = {}
    for i, op, now in a.situations(rank):
        if isinstance(op, Forward) and op.grad:
            _call(a.at(i), op, now, hooked)
        elif op.gives_gradients:
            demanded.append(frozenset(path for path, reached in hooked.items() if reached))
            # Hooks go with the backward that ran them.
            hooked.clear()
    return tuple(demanded)


def _call(a: Anatomy, op: Forward, now: Situation, hooked: dict[str, bool]) -> None:
    """Notes which units get a hook that backward will reach."""
    held = {place.path: [p.fqn for p in place.parameters if p.used] for place in a.places}
    trained = trained_units(a, now)
    for call in a.calls(op, now):
        if not call.grad:
            continue
        for fqn in held.get(call.path, ()):
            owner = now.owners[fqn]
            if owner is not None and trained[owner]:
                hooked[owner] = True
        if trained.get(call.path) is False:
            # Of a frozen unit the first call counts: later ones find the hook already there
            # (``_register_post_backward_reshard_only_hook`` in
            # torch/distributed/fsdp/_runtime_utils.py).
            hooked.setdefault(call.path, call.input_grad)


def trained_units(a: Anatomy, now: Situation) -> dict[str, bool]:
    """For each unit with parameters, whether its flat parameter requires grad."""
    trained = dict(now.flat)
    for fqn, owner in now.owners.items():
        if owner is None:
            continue
        if owner in a.fsdp1_options and not a.fsdp1_options[owner].flat:
            trained[owner] = trained.get(owner, False) or now.trained[fqn]
    return trained


def may_stay_whole(a: Anatomy, op: int) -> frozenset[str]:
    """Units that may stay unsharded after the backward ``op``; all others are sharded again.

    Gradients that are not reduced stay whole, parameters do not: only fsdp1's strategies that
    keep them whole after forward keep them after such a backward, too, and fsdp2 where it is
    told to.
    """
    now = a.at(op)
    passes = [p for p in a.case.program[:op] if isinstance(p, Forward) and p.waits]
    if not passes or passes[-1].sync:
        return unreached_roots(now)
    kept = now.units if kept_whole_after(a.case) else kept_whole(now)
    return unreached_roots(now).union(kept)
